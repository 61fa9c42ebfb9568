import os
import select
from collections import deque

import pytest

from tf2dist.launch.console_output import LONGEST_LINE, STDERR, STDOUT, LineSplitter, OutputQueue


def shown(pieces, prefix=b"[a] "):
    tail = deque(maxlen=20)
    lines = LineSplitter(STDOUT, prefix, tail)
    return b"".join([*map(lines.feed, pieces), lines.finish()]), list(tail)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"one\ntwo\n", b"[a] one\n[a] two\n"),
        (b"one\n\ntwo", b"[a] one\n[a] \n[a] two\n"),
        (b"dos\r\nline\r\n", b"[a] dos\n[a] line\n"),
        (b"\r10%\r20%\rdone\nnext\n", b"[a] done\n[a] next\n"),
        (b"10%\r20%\r", b"[a] 20%\n"),
        (b"\xff\xfe\x00\n", b"[a] \xff\xfe\x00\n"),
        (b"", b""),
    ],
)
def test_lines_get_a_prefix_however_they_arrive(size, text, expected):
    out, tail = shown([text[at : at + size] for at in range(0, len(text), size)])
    assert out == expected
    assert tail == [line.removeprefix(b"[a] ") for line in expected.splitlines()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_without_a_prefix_nothing_is_changed(size):
    text = b"\r10%\r20%\rdone\r\n\xff\nnext\n"
    out, tail = shown([text[at : at + size] for at in range(0, len(text), size)], prefix=b"")
    assert out == text
    assert tail[-2:] == [b"\xff", b"next"]


def test_progress_is_shown_at_once_only_without_a_prefix():
    assert LineSplitter(STDOUT, b"", deque()).feed(b"10%\r20%\r30") == b"10%\r20%\r"
    assert LineSplitter(STDOUT, b"[a] ", deque()).feed(b"10%\r20%\r30") == b""


def test_a_line_without_end_is_cut_and_nothing_of_it_is_lost():
    piece = b"x" * 65536
    out, _ = shown([piece] * 40)
    assert out.count(b"x") == 40 * 65536
    assert max(map(len, out.splitlines())) <= LONGEST_LINE + 65536 + len(b"[a] ")


def test_progress_that_another_process_interrupts_is_not_written_over(capfd):
    output, bar, other = OutputQueue(), object(), object()
    output.add(STDOUT, b"10%\r", bar)
    output.add(STDOUT, b"20%\r", bar)
    output.add(STDERR, b"[b] hello\n", other)
    flush(output)
    assert capfd.readouterr() == ("10%\r20%\r", "\n[b] hello\n")


def test_nothing_is_written_when_the_reader_is_gone(monkeypatch):
    read, write = os.pipe()
    monkeypatch.setattr("tf2dist.launch.console_output.STDOUT", write)
    os.close(read)
    output = OutputQueue()
    output.add(write, b"line\n")
    flush(output)
    assert isinstance(output.error, BrokenPipeError)
    assert not output
    os.close(write)


def flush(output):
    while output:
        poll = select.poll()
        output.register(poll)
        for fd, events in poll.poll(10_000):
            output.write_some(fd, events)
