"""A small file in which a training says how far it is, and which is whole whenever its process is killed."""

from __future__ import annotations

import dataclasses
import os
import secrets
import struct
import zlib
from dataclasses import dataclass

import numpy as np

_HEADER = struct.Struct("<16sII")  # who writes, and of the entry, which follows, a checksum and its bytes
_ENTRY = struct.Struct("<qq??")


@dataclass(frozen=True)
class JournalEntry:
    """How far a training is, as its own process knows.

    Attributes:
      step: the global step that it was told of last.
      epochs: before the one that it is in.
      between: are callbacks being called at the end of that one, or before it? They may be changing anything.
      stops: has a callback stopped the training?
      sums: metric sums of that epoch up to `step`, all in one, f64[n].
    """

    step: int
    epochs: int
    between: bool = False
    stops: bool = False
    sums: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


class TrainingJournal:
    """Writes the file, in one write each time, which the end of the process does not interrupt.

    Args:
      path: of the file, which is replaced.

    Attributes:
      path: as given, in full.
      identity: of this journal; others at the same path have others.

    Raises:
      OSError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.identity = secrets.token_hex(8)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def write(self, entry: JournalEntry, *, flush: bool = False) -> None:
        """Writes an entry in the place of the one before.

        Args:
          entry: the entry.
          flush: wait until other hosts can read it, and it outlives this one.

        Raises:
          OSError: it cannot be written; what is read then is no entry.
        """
        data = _ENTRY.pack(entry.step, entry.epochs, entry.between, entry.stops)
        data += np.asarray(entry.sums, np.float64).tobytes()
        os.pwrite(self._file, _HEADER.pack(self.identity.encode(), zlib.crc32(data), len(data)) + data, 0)
        if flush:
            os.fdatasync(self._file)

    def close(self, *, remove: bool = True) -> None:
        """Closes the file, and removes it."""
        os.close(self._file)
        if remove and read_journal(self.path, self.identity) is not None:
            os.remove(self.path)


def read_journal(path: str, identity: str) -> JournalEntry | None:
    """The last entry of the journal of this identity; None if there is none at this path, or it is not whole."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    if len(data) < _HEADER.size + _ENTRY.size:
        return None
    writer, checksum, length = _HEADER.unpack_from(data)
    content = data[_HEADER.size : _HEADER.size + length]  # what follows is left of a longer one
    if writer != identity.encode() or zlib.crc32(content) != checksum:
        return None
    step, epochs, between, stops = _ENTRY.unpack_from(content)
    return JournalEntry(step, epochs, between, stops, np.frombuffer(content[_ENTRY.size :], np.float64))
