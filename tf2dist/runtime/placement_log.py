"""The placement log: which device each operation asked for and which it got, or why one could not be placed.

The device asked for is noted where Python makes an operation, alone or in the graph of a `tf.function`. The device got
is decided by the process that starts that graph, and TensorFlow prints it to the standard output of that process. So
every process of a job calls `begin`, and the leader reads what the others have printed. This module does not import
TensorFlow at its top: a server calls `begin` before the import.
"""

# TensorFlow ships no types.
# pyright: strict, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tf2dist.cluster.spec import Task

_log = logging.getLogger("tf2dist")

_WIDTH = 70  # characters of an operation's name in a table
_PLACED = re.compile(r"(\S+): \((\w+)\): (\S+)")
_DEVICE = re.compile(
    r"(/job:[A-Za-z][A-Za-z0-9_]*(/replica:\d+)?(/task:\d+)?)?(/(device:)?(cpu|gpu|CPU|GPU)(:(\d+|\*))?)?"
)
_OWN_OUTPUT = "/proc/self/fd/1"  # of the process that opens it
_NOT_OURS = re.compile(r"__(inference|forward|backward)_|_?Arg$|_?Retval$|Placeholder$|NoOp$")


def begin(*, leads: bool) -> Log | None:
    """Starts the log; call it before TensorFlow has touched a device. Redirects file descriptor 1 to a file.

    Args:
      leads: whether this process makes graphs and wants the table; a server only runs them.

    Returns:
      The log if `leads`, else None.
    """
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.memfd_create("placements"), "wb") as file:  # it needs no directory
        os.dup2(file.fileno(), 1)  # TensorFlow prints with C's printf, which knows of no other place
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # a line at a time, for whoever reads it
    return Log() if leads else None


class Log:
    """The placements of the operations that this process makes from now on."""

    def __init__(self) -> None:
        from tf2dist.runtime.tensorflow_import import import_tensorflow

        tf = import_tensorflow()
        from tf2dist.compat import eager_context

        tf.debugging.set_log_device_placement(True)
        self._alone: dict[tuple[str, str, str], None] = {}  # operations outside of graphs: type, wanted, got
        self._wanted: dict[tuple[str, str], list[str]] = {}  # by name and type, of those in graphs
        self._current_device = eager_context.current_device
        eager_context.on_operation(self._note)

    def _note(
        self,
        op_type: str | bytes,
        inputs: Sequence[Any],
        attrs: Any,
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> None:
        kind = op_type.decode() if isinstance(op_type, bytes) else op_type
        if _NOT_OURS.search(kind):
            return
        if graph is None:
            for output in outputs[:1]:
                self._alone[kind, self._current_device(), output.device] = None
        elif op_name:
            wanted = self._wanted.setdefault((op_name.rstrip("/"), kind), [])
            asked = outputs[0].op.device if outputs else ""
            if asked not in wanted:
                wanted.append(asked)

    def rows(self, servers: Iterable[Task] = ()) -> list[tuple[str, str, str]]:
        """Operation, device wanted ("" if any would do) and device got, of each that has run, once.

        Args:
          servers: tasks that have run graphs for this process, each of which has called `begin`.
        """
        rows = {(name, short(wanted), short(got)): None for name, wanted, got in self._alone}
        for name, kind, got in _PLACED.findall(_printed(servers)):
            parts = name.split("/")
            # A graph inside of a graph has the names of its operations after its own.
            for i in range(len(parts)):
                ours = "/".join(parts[i:])
                if (ours, kind) in self._wanted:
                    wanted = self._wanted[ours, kind]
                    fit = [w for w in wanted if _fits(w, got)] or wanted
                    rows[f"{ours} ({kind})", short(max(fit, key=len)), short(got)] = None
                    break
        return sorted(rows)

    def table(self, servers: Iterable[Task] = ()) -> str:
        """The rows as lines of text with a heading; of a long name the end, which says most."""
        rows = [(_end(op), wanted or "any", got) for op, wanted, got in self.rows(servers)]
        return table(("operation", "wanted", "got"), rows)


def table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Lines of columns, as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in (heading, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def short(device: str) -> str:
    """A device as people write it: "/job:localhost/replica:0/task:0/device:CPU:0" is "/cpu:0"."""
    device = device.removeprefix("/job:localhost/replica:0/task:0").replace("/replica:0", "")
    return re.sub(r"/device:(\w+)", lambda match: f"/{match[1].lower()}", device)


def is_device(text: str) -> bool:
    """Is it a device as `tf.device` takes it: "/gpu:0", "/job:worker/task:1", "/job:ps/task:0/device:CPU:0"?"""
    return bool(text) and bool(_DEVICE.fullmatch(text))


def _fits(wanted: str, got: str) -> bool:
    asked = wanted.lower().replace("/device:", "/").split("/")
    return set(asked) <= set(got.lower().replace("/device:", "/").split("/"))


def _end(name: str) -> str:
    return name if len(name) <= _WIDTH else "..." + name[3 - _WIDTH :]


def _printed(servers: Iterable[Task]) -> str:
    """What TensorFlow has printed in this process, and in those of the servers that are not lost."""
    import tensorflow as tf

    from tf2dist.runtime import session

    with open(_OWN_OUTPUT, "rb") as file:
        texts = [file.read()]
    for task in servers:
        if task.job in ("evaluator", "data_worker") or task in session.current().lost_tasks():
            continue
        try:
            with tf.device(f"/job:{task.job}/task:{task.index}/cpu:0"):
                texts.append(tf.io.read_file(_OWN_OUTPUT).numpy())
        except tf.errors.OpError:  # it was started without
            _log.warning("tf2dist: %s has not noted its placements", task)
    return b"\n".join(texts).decode(errors="replace")


def explain(error: Exception, op: str = "", wanted: str = "") -> str | None:
    """One line for TensorFlow's error that an operation cannot be where it asks to be; None for any other error.

    Args:
      op, wanted: how the user calls the operation and the device; as TensorFlow does if not given.
    """
    text = str(error)
    asked = re.search(
        r"device specification '(?P<a>[^']+)'|any devices for spec (?P<b>\S+)|explicitly assigned to (?P<c>\S+)"
        r"|^(?P<d>/job:\S+) unknown device",
        text,
    )
    if not asked:
        return None
    import tensorflow as tf

    spec = next(filter(None, asked.groups()))
    found = re.search(r"for operation (\S+?):", text) or re.search(r"\[Op:\w+\] name: (\S+)", text)
    op = op or (found[1] if found else _in_function(text, spec))
    there = ", ".join(short(d.name) for d in tf.config.list_logical_devices() if "XLA" not in d.device_type)
    return f"operation {op} cannot be placed on {wanted or short(spec)}; the devices are {there}"


def _in_function(text: str, wanted: str) -> str:
    """The operation that an error without its name is about."""
    found = re.search(r"\[Op:(\w+)\]", text)
    if not found:
        return "Const"  # the only one that is made without being run
    from tf2dist.compat import eager_context

    for node in eager_context.nodes_of_function(found[1]):
        if node.device == wanted:
            return f"{node.name} ({node.op})"
    return found[1]
