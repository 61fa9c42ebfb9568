import gzip
import itertools

import pytest
import tensorflow as tf

from tf2dist.data.errors import DataError
from tf2dist.data.tfrecord_framing import count_records, first_record


def write(path, payloads):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return path


def test_counts_what_tensorflow_wrote(tmp_path):
    lengths = [0, 1, 255, 256, 65_536, 1_000_003, *range(300)]
    one = write(tmp_path / "one", [b"x" * length for length in lengths])
    two = write(tmp_path / "two", [b"y"])
    assert count_records(one) == len(lengths)
    assert count_records(str(two)) == 1
    assert count_records([one, two]) == count_records(path for path in (one, two)) == len(lengths) + 1


def test_first_payload(tmp_path):
    assert first_record(write(tmp_path / "file", [b"hello", b"more"])) == b"hello"


def test_truncated_anywhere(tmp_path):
    payloads = [b"abc", b"", b"defgh"]
    data = write(tmp_path / "whole", payloads).read_bytes()
    ends = [0, *itertools.accumulate(len(payload) + 16 for payload in payloads)]
    assert ends[-1] == len(data)
    cut = tmp_path / "cut"
    for size in range(1, len(data)):  # inside a length, its checksum, a payload, its checksum, and between records
        cut.write_bytes(data[:size])
        if size in ends:
            assert count_records(cut) == ends.index(size)
            continue
        record = sum(end <= size for end in ends)
        with pytest.raises(DataError) as error:
            count_records(cut)
        assert str(error.value).startswith(
            f"{cut} is truncated: it ends at byte {size}, inside record {record}, "
            f"which begins at byte {ends[record - 1]};"
        )


@pytest.mark.parametrize("byte", range(12))
def test_damaged_length(tmp_path, byte):
    path = write(tmp_path / "file", [b"abc", b"def"])
    data = bytearray(path.read_bytes())
    data[19 + byte] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="the length of record 2, at byte 19, has a wrong checksum"):
        count_records(path)


@pytest.mark.parametrize("content", [b"label,pixels\n1,2,3\n", gzip.compress(b"x" * 100, mtime=0), bytes(100)])
def test_other_files(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match="file is not an uncompressed TFRecord file"):
        count_records(path)


def test_nothing_to_count(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="empty is empty"):
        count_records(tmp_path / "empty")
    with pytest.raises(DataError, match="absent cannot be read: No such file"):
        count_records(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        count_records(tmp_path)
    with pytest.raises(DataError, match="no TFRecord file was named"):
        count_records([])
