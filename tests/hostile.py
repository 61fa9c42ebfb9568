"""Input that nobody means well with: texts that are nearly right, or not at all; and what may come of it.

`TF2DIST_TESTS_EXAMPLES=10000` has each test that draws it try so many, instead of a few.
"""

import contextlib
import os
import resource
import signal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = "TF2DIST_TESTS_EXAMPLES"
_SECONDS = 10  # of processor time for one input, whatever else the machine does
_MEMORY = 1 << 30  # bytes that one input may have this process take

# What parsers stumble over.
NASTY = (
    "", " ", "\0", "\n", "\r\n", "\r", "\t", "\ufeff", "\u2028", "\x85", "\x1b[2J", "\x7f", "é", "字", "😀",
    "²", "٣", "９", "Ⅷ", "\udcff", "\ud800",
    "0", "-1", "+1", "1_0", "1e3", "1e999", "-1e999", "inf", "-inf", "nan", "0x10", "007", "1.5", "65536", "2147483648",
    "99999999999", "9223372036854775808", "1" + "0" * 40, "9" * 4301,
    "null", "true", "[]", "{}", "[", "]", "{", "}", "(", ")", '"', "'", "\\", "\\u0000", "`", "$", "$(id)", "${HOME}",
    ";", "|", "&", "#", "%", "%s", "{0}", "{x.__class__}", "<", ">", "*", "?", "~", "!", "=", ":", ",", ".", "..", "/",
    "@", "-", "--", "-o", "--ProxyCommand=id", "../../etc/passwd", "a" * 64, "a." * 200, "[" * 3000, '{"a":' * 3000,
)  # fmt: skip


def examples(count=100):
    """So many inputs, the same ones every time; as many as the environment variable says, if it is set."""
    return settings(
        max_examples=int(os.environ.get(EXAMPLES, count)),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def changed(draw, texts, nasty=NASTY):
    """One of these texts (str or bytes) with up to three changes: cut, doubled, swapped, or with something in it."""
    text = draw(st.sampled_from(texts))
    words = [word.encode("utf-8", "surrogatepass") for word in nasty] if isinstance(text, bytes) else nasty
    for _ in range(draw(st.integers(0, 3))):
        begin, middle, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 3)))
        piece = text[begin:end]
        kind = draw(st.sampled_from(["cut", "double", "many", "swap", "insert", "replace", "number", "end"]))
        if kind == "cut":
            piece = piece[:0]
        elif kind == "double":
            piece += piece
        elif kind == "many":
            piece = piece[:20] * 300
        elif kind == "swap":
            piece = text[middle:end] + text[begin:middle]
        elif kind == "insert":
            piece = text[begin:middle] + draw(st.sampled_from(words)) + text[middle:end]
        elif kind == "replace":
            piece = draw(st.sampled_from(words))
        elif kind == "end":
            text, piece, begin, end = text[:end], text[:0], end, end
        elif digits := [i for i in range(len(text)) if text[i : i + 1].isdigit()]:  # one of its numbers
            begin = draw(st.sampled_from(digits))
            end = next((i for i in range(begin, len(text)) if i not in digits), len(text))
            piece = draw(st.sampled_from(words))
        text = text[:begin] + piece + text[end:]
    return text


def texts(*right):
    """Texts that are nearly these, and some that are nothing like them."""
    return changed(right) | changed(right) | changed(right) | st.sampled_from(NASTY) | st.text(max_size=100)


def contents(*right):
    """As `texts`, of files: bytes."""
    encoded = [text.encode() if isinstance(text, str) else text for text in right]
    return changed(encoded) | changed(encoded) | changed(encoded) | st.binary(max_size=200)


def variables(*right):
    """As `texts`, of environment variables and arguments, which hold no zero byte and can be bytes that are no text."""
    return texts(*right).map(lambda text: text.replace("\0", "").encode("utf-8", "replace").decode())


def parsed(refusals, call, *args, **kwargs):
    """What a parser makes of an input; None if it refuses it, as it should: by one of these errors, in one line."""
    try:
        with bounded():
            return call(*args, **kwargs)
    except refusals as error:
        said = str(error)
    assert said.isprintable(), repr(said)
    assert len(said) < 5000
    return None


@contextlib.contextmanager
def bounded():
    """Ends what takes long, or much memory."""
    before, (_, hard) = signal.signal(signal.SIGVTALRM, _end), resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class TooLong(BaseException):
    """An input was looked at for too long."""


def _end(*_):
    raise TooLong
