"""The framing of records in TFRecord files, without TensorFlow: counts records and finds truncated files.

A record is: length (u64), masked CRC-32C of the length (u32), the payload, masked CRC-32C of the payload (u32).
All numbers are little-endian.
"""

import functools
import mmap
import os
import struct
from collections.abc import Iterable, Iterator

from tf2dist.data.errors import DataError
from tf2dist.data.local_copies import local_path
from tf2dist.system import files
from tf2dist.system.local_paths import split_url

Path = str | os.PathLike[str]

_HEADER = struct.Struct("<QI")
_FOOTER_SIZE = 4


def path_list(paths: Path | Iterable[Path]) -> list[str]:
    """Returns one path or URL, or several, as a list of strings.

    Raises:
        DataError: there is none.
        UsageError: a URL of a scheme that is not known, or whose package is not installed.
    """
    names = [os.fspath(paths)] if isinstance(paths, str | os.PathLike) else [os.fspath(path) for path in paths]
    for name in names:
        files.check(name, name)
    names = [files.absolute(name) if split_url(name) else name for name in names]
    if not names:
        raise DataError("no TFRecord file was named; name one or more")
    return names


def count_records(paths: Path | Iterable[Path]) -> int:
    """Counts the records of all files.

    Checks the checksum of every length; skips payloads without reading them.

    Raises:
        DataError: a file is missing or empty, ends inside a record, or is not a TFRecord file.
    """
    return sum(sum(1 for _ in _records(path)) for path in path_list(paths))


def first_record(path: Path) -> bytes:
    """Returns the payload of a file's first record. Raises DataError as `count_records` does."""
    begin, end = next(_records(os.fspath(path)))
    with open(local_path(os.fspath(path)), "rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def _records(path: str) -> Iterator[tuple[int, int]]:
    """Yields where each payload begins and ends, in bytes."""
    try:
        file = open(local_path(path), "rb")  # noqa: SIM115 (closed by the `with` below)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise DataError(f"{path} is empty; a TFRecord file holds at least one record")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            begin, number = 0, 1
            while begin < size:
                if begin + _HEADER.size > size:
                    raise _truncated(path, size, number, begin)
                length, checksum = _HEADER.unpack_from(data, begin)
                if checksum != _checksum_of_length(length):
                    raise DataError(
                        f"{path} is not an uncompressed TFRecord file, or is damaged: "
                        f"the length of record {number}, at byte {begin}, has a wrong checksum"
                    )
                end = begin + _HEADER.size + length
                if end + _FOOTER_SIZE > size:
                    raise _truncated(path, size, number, begin)
                yield begin + _HEADER.size, end
                begin, number = end + _FOOTER_SIZE, number + 1


def _truncated(path: str, size: int, number: int, begin: int) -> DataError:
    return DataError(
        f"{path} is truncated: it ends at byte {size}, inside record {number}, which begins at byte {begin}; "
        "copy or write it again"
    )


@functools.lru_cache(maxsize=65536)  # a file repeats few lengths
def _checksum_of_length(length: int) -> int:
    crc = 0xFFFFFFFF
    for byte in struct.pack("<Q", length):
        crc = _table()[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # TFRecord's mask


@functools.cache
def _table() -> list[int]:
    """CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of every byte."""
    table: list[int] = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table
