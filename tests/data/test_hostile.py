"""Data files that are nearly right, or not at all: what is in them, or one line that says what is wrong."""

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hostile import NASTY, changed, contents, examples, parsed, texts, variables
from tf2dist.data import image_sources, tfds_directory, tfrecord
from tf2dist.data.errors import DataError
from tf2dist.data.tfrecord_framing import _checksum_of_length, count_records, first_record
from tf2dist.errors import UsageError


def framed(*payloads):
    """A TFRecord file without the checksums of payloads."""
    return b"".join(
        struct.pack("<QI", len(payload), _checksum_of_length(len(payload))) + payload + b"\0\0\0\0"
        for payload in payloads
    )


@examples()
@given(contents(framed(b"abc", b"", b"image_raw pixels label"), framed(b"x" * 70_000)))
def test_framing(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "file"
    path.write_bytes(content)
    count = parsed(DataError, count_records, path)
    parsed(DataError, tfrecord.check_features, path)
    if count:
        assert content.startswith(struct.pack("<Q", len(first_record(path))))


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**62, 10**12])
def test_lengths_beyond_the_file(tmp_path, length):
    (tmp_path / "file").write_bytes(struct.pack("<QI", length, _checksum_of_length(length)) + b"abc")
    with pytest.raises(DataError, match="truncated"):
        count_records(tmp_path / "file")


def _record(tf, **changes):
    features = {"image_raw": b"\0" * 784, "pixels": 784, "label": 3, **changes}
    made = {}
    for name, value in features.items():
        kind = {"bytes_list": {"value": [value]}} if isinstance(value, bytes) else {"int64_list": {"value": [value]}}
        made[name] = tf.train.Feature(**kind)
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


@pytest.fixture(scope="module")
def whole(tf, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("whole") / "file")
    with tf.io.TFRecordWriter(path) as writer:
        for label in range(3):
            writer.write(_record(tf, label=label))
    with open(path, "rb") as file:
        return file.read()


def test_files(tf, whole, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "train.tfrecords"

    @examples(10)
    @given(changed([whole]))
    def try_them(content):
        path.write_bytes(content)
        parsed(DataError, tfrecord.load, path)

    try_them()


@pytest.mark.slow
def test_records(tf, tmp_path_factory):
    """The framing is right, and what it holds is not."""
    path = str(tmp_path_factory.getbasetemp() / "records")

    @examples(6)  # TensorFlow makes a pipeline for each, which takes half a second
    @example(b"\x80")
    @given(contents(_record(tf), _record(tf, label=10), _record(tf, pixels=-1), _record(tf, image_raw=b"")))
    def try_them(payload):
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(payload)
        parsed(DataError, tfrecord.load, path)

    try_them()


_INFO = json.dumps(
    {
        "name": "mnist",
        "version": "3.0.1",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": "train",
                "shardLengths": ["2"],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            },
            {"name": "test", "shardLengths": ["1"]},
        ],
    }
)


@examples()
@given(contents(_INFO))
def test_what_is_said_of_a_prepared_data_set(tmp_path_factory, content):
    directory = tmp_path_factory.getbasetemp() / "mnist" / "3.0.1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "features.json").touch()
    (directory / "mnist-train.tfrecord-00000-of-00001").write_bytes(framed(b"a", b"b"))
    (directory / "mnist-test.tfrecord-00000-of-00001").write_bytes(framed(b"a"))
    (directory / "dataset_info.json").write_bytes(content)
    parsed(DataError, tfds_directory.find, "mnist", str(directory.parent.parent))


@pytest.mark.parametrize("version", ["9" * 200 + ".0.0", "٣.0.1", "1.0.0\n"])
def test_versions(tmp_path, version):
    (tmp_path / "mnist" / version).mkdir(parents=True)
    with (
        pytest.raises(DataError, match=r"missing|is prepared")
        if version != "1.0.0\n"
        else pytest.raises(AssertionError)
    ):
        assert tfds_directory.find("mnist", str(tmp_path)) is not None


@examples()
@given(texts('{"name": "mnist", "path": "/a", "note": ""}', '{"name": "digits"}'))
def test_sources(text):
    parsed(DataError, image_sources.Source.from_json, text)


@examples()
@given(st.sets(st.sampled_from(["train.tfrecords", "train-00000-of-00002.tfrecord", "train-00001-of-99999.tfrecord",
                                "test.tfrecords", "validation-1-of-x.tfrecord", "test[a].tfrecord"])),
       variables("train.tfrecords", "", "train-00000-of-00002.tfrecord"))  # fmt: skip
def test_names_of_files(tmp_path_factory, names, name):
    directory = tmp_path_factory.mktemp("names")
    for each in names:
        (directory / each).touch()
    parsed(UsageError, tfrecord.files, str(directory / name.replace("/", "")[:100]))


@examples(50)
@given(st.sampled_from([word for word in NASTY if "\0" not in word and "\ud800" not in word]) | variables("synthetic"))
def test_names_of_data_sets(name):
    if name not in image_sources.NAMES:
        parsed(UsageError, image_sources.find, name)
