"""Finds and loads image data sets by name: MNIST, its replacements, or TFRecord files.

`find` runs in the process that the user started: it imports no TensorFlow, and reports every missing, truncated or
foreign file before a cluster is started. Its result is sent to the other processes as JSON, and they call `load`.
"""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

from tf2dist.data import tfds_directory
from tf2dist.data.errors import DataError, StoreDataError
from tf2dist.system import files, optional_packages

if TYPE_CHECKING:
    from tf2dist.data.synthetic_dataset import Images

NAMES = ("auto", "mnist", "fashion_mnist", "digits", "synthetic")
_TFDS_NAMES = ("mnist", "fashion_mnist")  # prepared by tensorflow-datasets


@dataclasses.dataclass(frozen=True)
class Source:
    """Where to `load` images from.

    Attributes:
        name: `mnist`, `fashion_mnist`, `digits`, `synthetic` or `tfrecord`.
        path: absolute, or a URL; the version's directory that tensorflow-datasets prepared, or the argument of
            `tfrecord.files`. None for images that need no file.
        note: one line for the user when `auto` fell back to other data, else empty.
    """

    name: str
    path: str | None = None
    note: str = ""

    def __post_init__(self):
        if self.name not in (*NAMES[1:], "tfrecord"):
            raise DataError(f"Source.name is {self.name!r}; it is one of {', '.join(NAMES[1:])}, tfrecord")
        if (self.path is not None) != (self.name in (*_TFDS_NAMES, "tfrecord")):
            raise DataError(f"Source.path is {self.path!r}; mnist, fashion_mnist and tfrecord have one, others none")

    def to_json(self) -> str:
        """One line of ASCII, fit for a command line or an environment variable."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Source:
        """The inverse of `to_json`. Raises DataError for anything else."""
        try:
            return cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise DataError(f"{text!r} is not a Source's JSON: {error}") from None


def find(name: str, data_dir: str | None = None) -> Source:
    """Decides where the images come from, and checks that all files are there.

    Args:
        name: `mnist` or `fashion_mnist`: prepared by tensorflow-datasets, or downloaded now. `auto`: MNIST if it is
            there or can be downloaded, otherwise `digits`, with the reason in `note`. `digits`: needs scikit-learn.
            `synthetic`: needs nothing. Or the path or URL of TFRecord files, see `tfrecord.files`.
        data_dir: where tensorflow-datasets keeps its data sets, a directory or its URL; default: `$TFDS_DATA_DIR`, then
            `~/tensorflow_datasets`.

    Raises:
        DataError: the data is missing or damaged; says what to do.
        UsageError: a URL of a scheme that is not known, or whose package is not installed.
    """
    files.check(f"--dataset={name}", name)
    files.check(f"--data_dir={data_dir}", data_dir or "")
    try:
        return _find(name, data_dir)
    except files.StoreError as error:
        raise StoreDataError(str(error)) from None


def _find(name: str, data_dir: str | None) -> Source:
    if data_dir is not None and not files.is_directory(os.path.expanduser(data_dir)):
        raise DataError(f"--data_dir={data_dir} is not a directory; name one that exists, or leave the flag out")
    if name in _TFDS_NAMES:
        return Source(name, _find_tfds(name, data_dir))
    if name == "auto":
        try:
            return Source("mnist", _find_tfds("mnist", data_dir))
        except StoreDataError:  # it may well be there
            raise
        except DataError as error:
            note = f"Using scikit-learn's handwritten digits, because {error}"
        _check_digits_installed()
        return Source("digits", note=note)
    if name == "digits":
        _check_digits_installed()
    if name in NAMES:
        return Source(name)
    if not files.exists(os.path.expanduser(name)):
        raise DataError(f"--dataset={name} is neither {', '.join(NAMES)} nor an existing path")

    from tf2dist.data import tfrecord, tfrecord_framing

    path = files.absolute(os.path.expanduser(name))
    for part in tfrecord.files(path):
        tfrecord_framing.count_records(part)
        for file in part:
            tfrecord.check_features(file)
    return Source("tfrecord", path)


def load(source: Source) -> tuple[Images, Images]:
    """Reads all images into memory, in the same order in every process.

    TensorFlow decodes them, except for digits and synthetic images: set up devices and cluster before.

    Returns:
        (images u8[n, 28, 28], labels i64[n]) twice: train, test.

    Raises:
        DataError: the files are not there (any more, or on this host), or are damaged.
    """
    if source.name == "digits":
        from tf2dist.data import digits_dataset

        return digits_dataset.load()
    if source.name == "synthetic":
        from tf2dist.data import synthetic_dataset

        return synthetic_dataset.load()
    assert source.path is not None  # Source checks it
    if source.name in _TFDS_NAMES:
        return tfds_directory.load(source.path)

    from tf2dist.data import tfrecord

    train, test = tfrecord.files(source.path)
    return tfrecord.load(train), tfrecord.load(test)


def _find_tfds(name: str, data_dir: str | None) -> str:
    """Returns the checked directory of a prepared data set, downloaded if there is none. Raises DataError."""
    if data_dir is not None:
        roots = [data_dir]
    else:
        named = os.environ.get("TFDS_DATA_DIR", "")
        files.check(f"TFDS_DATA_DIR={named}", named)
        roots = [root for root in (named, "~/tensorflow_datasets") if root]
    roots = [files.absolute(os.path.expanduser(root)) for root in roots]
    for root in roots:
        if directory := tfds_directory.find(name, root):
            return directory

    if files.is_url(roots[0]):
        raise DataError(
            f"{name} is not prepared under {' or '.join(roots)}, and is not downloaded into a store; prepare it in a "
            f"local --data_dir, and copy {name}/ from there"
        )

    from tf2dist.data import download

    if reason := optional_packages.missing("tensorflow_datasets") or download.unreachable():
        raise DataError(
            f"{name} is not prepared under {' or '.join(roots)} and cannot be downloaded: {reason}; "
            "copy it there from a machine that has it, or name its place with --data_dir"
        )
    return download.download(name, roots[0])


def _check_digits_installed() -> None:
    """Raises DataError where scikit-learn, which contains the digits, is not installed."""
    if why := optional_packages.missing("sklearn"):
        raise DataError(f"the handwritten digits are scikit-learn's, and {why}; --dataset=synthetic needs nothing")
