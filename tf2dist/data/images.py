"""Where the images come from, and the images: MNIST, its replacements, or anyone's TFRecord files.

`find` is for the process that the user started: it imports no TensorFlow, and finds every missing, truncated or
foreign file before a cluster is started. What it returns goes to the other processes as JSON, and they `load`.
"""

import dataclasses
import json
import os

from tf2dist.data import prepared
from tf2dist.data.errors import DataError

NAMES = ("auto", "mnist", "fashion_mnist", "digits", "synthetic")
_PREPARED = ("mnist", "fashion_mnist")  # by tensorflow-datasets


@dataclasses.dataclass(frozen=True)
class Source:
    """A place to `load` images from.

    Attributes:
        name: `mnist`, `fashion_mnist`, `digits`, `synthetic` or `tfrecord`.
        path: absolute; the version's directory that tensorflow-datasets prepared, or what `tfrecord.files` takes.
            None for images that need no file.
        note: one line for the user when `auto` fell back to other data, else empty.
    """

    name: str
    path: str | None = None
    note: str = ""

    def __post_init__(self):
        if self.name not in (*NAMES[1:], "tfrecord"):
            raise DataError(f"Source.name is {self.name!r}; it is one of {', '.join(NAMES[1:])}, tfrecord")
        if (self.path is not None) != (self.name in (*_PREPARED, "tfrecord")):
            raise DataError(f"Source.path is {self.path!r}; mnist, fashion_mnist and tfrecord have one, others none")

    def to_json(self) -> str:
        """One line of ASCII, fit for a command line or an environment variable."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Source":
        """The inverse of `to_json`. Raises DataError for anything else."""
        try:
            return cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise DataError(f"{text!r} is not a Source's JSON: {error}") from None


def find(name: str, data_dir: str | None = None) -> Source:
    """Decides where the images come from, and checks that they are all there.

    Args:
        name: `mnist` or `fashion_mnist`: prepared by tensorflow-datasets, or downloaded now if the network can be
            reached. `auto`: MNIST if it can be had, else `digits`, saying so in `note`. `digits`, `synthetic`:
            always there. Or the path of TFRecord files, see `tfrecord.files`.
        data_dir: where tensorflow-datasets keeps its data sets; by default `$TFDS_DATA_DIR` and then
            `~/tensorflow_datasets`.

    Raises:
        DataError: it is not there, or damaged, and what to do about it.
    """
    if data_dir is not None and not os.path.isdir(os.path.expanduser(data_dir)):
        raise DataError(f"--data_dir={data_dir} is not a directory; name one that exists, or leave the flag out")
    if name in _PREPARED:
        return Source(name, _prepared(name, data_dir))
    if name == "auto":
        try:
            return Source("mnist", _prepared("mnist", data_dir))
        except DataError as error:
            return Source("digits", note=f"Using scikit-learn's handwritten digits, because {error}")
    if name in NAMES:
        return Source(name)
    if not os.path.exists(os.path.expanduser(name)):
        raise DataError(f"--dataset={name} is neither {', '.join(NAMES)} nor an existing path")

    from tf2dist.data import framing, tfrecord

    path = os.path.abspath(os.path.expanduser(name))
    for files in tfrecord.files(path):
        framing.count(files)
        for file in files:
            tfrecord.check_form(file)
    return Source("tfrecord", path)


def load(source: Source):
    """Reads all images into memory, in the same order in every process.

    All but digits and synthetic images are decoded by TensorFlow, so devices and cluster must be set up before.

    Returns:
        (images u8[n, 28, 28], labels i64[n]) twice: train, test.

    Raises:
        DataError: the files are not there (any more, or on this host), or are damaged.
    """
    if source.name == "digits":
        from tf2dist.data import digits

        return digits.load()
    if source.name == "synthetic":
        from tf2dist.data import synthetic

        return synthetic.load()
    assert source.path is not None  # Source sees to it
    if source.name in _PREPARED:
        return prepared.load(source.path)

    from tf2dist.data import tfrecord

    train, test = tfrecord.files(source.path)
    return tfrecord.load(train), tfrecord.load(test)


def _prepared(name: str, data_dir: str | None) -> str:
    """The checked directory of a prepared data set, downloaded if it is nowhere. Raises DataError."""
    if data_dir is not None:
        places = [data_dir]
    else:
        places = [place for place in (os.environ.get("TFDS_DATA_DIR"), "~/tensorflow_datasets") if place]
    places = [os.path.abspath(os.path.expanduser(place)) for place in places]
    for place in places:
        if directory := prepared.find(name, place):
            return directory

    from tf2dist.data import download

    if reason := download.unreachable():
        raise DataError(
            f"{name} is not prepared under {' or '.join(places)} and cannot be downloaded: {reason}; "
            "copy it there from a machine that has it, or name its place with --data_dir"
        )
    return download.download(name, places[0])
