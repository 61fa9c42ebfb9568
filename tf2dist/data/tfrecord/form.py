"""What a record holds."""

from tf2dist.data.errors import DataError
from tf2dist.data.framing import Path, first

CLASSES = 10
SIDE = 28
PIXELS = SIDE * SIDE


def check_form(path: Path) -> None:
    """Raises DataError unless a file's first record has this module's features. Needs no TensorFlow."""
    record = first(path)
    missing = [name for name in ("image_raw", "pixels", "label") if name.encode() not in record]
    if missing:
        raise DataError(f"{path} holds other records: the first lacks {', '.join(missing)}; see tf2dist.data.tfrecord")
