"""The features of a record of an image."""

from tf2dist.data.errors import DataError
from tf2dist.data.tfrecord_framing import Path, first_record

CLASSES = 10
SIDE = 28
PIXELS = SIDE * SIDE


def check_features(path: Path) -> None:
    """Raises DataError unless a file's first record has these features. Needs no TensorFlow."""
    record = first_record(path)
    missing = [name for name in ("image_raw", "pixels", "label") if name.encode() not in record]
    if missing:
        raise DataError(f"{path} holds other records: the first lacks {', '.join(missing)}; see tf2dist.data.tfrecord")
