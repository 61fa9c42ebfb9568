"""`python -m tf2dist.data.tfrecord`: writes any data set as TFRecord files."""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from tf2dist.data import image_sources, tfrecord
from tf2dist.data.errors import DataError
from tf2dist.errors import UsageError
from tf2dist.system import files
from tf2dist.system.atomic_files import replacing
from tf2dist.system.commands import Parser

DESCRIPTION = """Writes a data set of 28x28 images as TFRecord files, with the features image_raw (bytes), pixels and
label (int64). Both files are written, or neither; at a URL, where the second one fails, there is no data set."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 failed on the way, 2 a wrong command or data that is not there."""
    parser = Parser("python -m tf2dist.data.tfrecord", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--dataset",
        default="auto",
        help=f"{', '.join(image_sources.NAMES)}, or the path of TFRecord files (default: auto)",
    )
    parser.add_argument("--data_dir", help="where tensorflow-datasets keeps its data sets")
    parser.add_argument(
        "--out", required=True, help="directory or URL for train.tfrecords and test.tfrecords; made if new"
    )
    arguments = parser.parse_args(argv)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        if files.is_url(arguments.out):
            files.check_writable(f"--out={arguments.out}", f"{arguments.out.rstrip('/')}/train.tfrecords")
        files.check(f"--out={arguments.out}", arguments.out)
        source = image_sources.find(arguments.dataset, arguments.data_dir)
        out = files.absolute(os.path.expanduser(arguments.out))
        if files.exists(out) and not files.is_directory(out):
            raise DataError(f"--out={arguments.out} is not a directory")
        # The training part is put in place last: without it `find` finds nothing.
        paths = [os.path.join(out, f"{part}.tfrecords") for part in ("test", "train")]
        if folders := [path for path in paths if files.is_directory(path)]:
            raise DataError(f"{folders[0]} is a directory; choose another --out")
    except (UsageError, files.StoreError) as error:
        parser.error(str(error))
    if source.note:
        print(source.note)
    try:
        with _silenced_stderr():  # TensorFlow's messages are not the user's
            written = [(path, number, files.size(path)) for path, number in _write(source, out, paths).items()]
    except (DataError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    for path, number, size in written:
        print(f"Wrote {number:,} images ({source.name}) to {path}, {size:,} bytes")
    return 0


def _write(source: image_sources.Source, out: str, paths: list[str]) -> dict[str, int]:
    """Writes both parts or none; returns the number of images by path."""
    train, test = image_sources.load(source)
    parts = dict(zip(paths, (test, train), strict=True))
    files.make_directories(out)
    with replacing(*paths) as temporary:
        for path, (pictures, labels) in zip(temporary, parts.values(), strict=True):
            tfrecord.write_in_place(path, pictures, labels)
        if files.is_url(out):  # where two objects are not replaced together: no new part beside an old one
            files.remove(paths[-1])
    return {path: len(labels) for path, (_, labels) in parts.items()}


@contextlib.contextmanager
def _silenced_stderr():
    """Discards standard error while the block runs, also what C++ writes to it."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _stop(number: int, frame: object) -> None:
    """Exits by an exception, so that half-written files are removed; ignores further signals meanwhile."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
