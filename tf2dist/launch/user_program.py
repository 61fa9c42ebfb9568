"""The user's program: checks that it exists, and runs it in a forked child as `python` would."""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import importlib.util
import io
import os
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, cast

from tf2dist.errors import Preempted, UsageError
from tf2dist.system import program_errors

# The files whose frames lie between the start of the interpreter and the program; "<string>" is Python's -c.
_LAUNCHER_FILES = {
    __file__,
    os.path.join(os.path.dirname(__file__), "fork_server.py"),
    runpy.run_module.__code__.co_filename,
    "<string>",
}


def python_arguments(program: Sequence[str]) -> tuple[str, ...]:
    """Returns `MODULE_OR_SCRIPT args...` as Python takes it: ("-m", module, args...) or (script, args...).

    Something that ends in ".py", has a slash, or is a file is a script. Nothing of the program is imported.

    Raises:
      UsageError: there is no such script or module.
    """
    name = program[0]
    if is_script(name):
        if not os.path.isfile(name):
            raise UsageError(f"there is no script {name!r} in {os.getcwd()}")
        return tuple(program)
    parts = name.split(".")
    spec = None
    if all(parts) and parts[0] != "__main__":  # that would be the launcher
        cwd = [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]
        spec = importlib.machinery.PathFinder.find_spec(parts[0], cwd) or importlib.util.find_spec(parts[0])
    for depth in range(2, len(parts) + 1):
        spec = spec and _find_in(spec, ".".join(parts[:depth]))
    if spec is None:
        raise UsageError(f"there is no module {name!r}, and no file of that name in {os.getcwd()}")
    if spec.submodule_search_locations is not None and not _find_in(spec, f"{name}.__main__"):
        raise UsageError(f"{name!r} is a package without a __main__; name one of its modules")
    return ("-m", *program)


def is_script(name: str) -> bool:
    """Is this the name of a file, and not of a module?"""
    return name.endswith(".py") or os.sep in name or os.path.isfile(name)


def _find_in(package: importlib.machinery.ModuleSpec, name: str) -> importlib.machinery.ModuleSpec | None:
    return importlib.machinery.PathFinder.find_spec(name, package.submodule_search_locations or [])


def run_as_main(argv: Sequence[str]) -> None:
    """Runs what `python argv...` would run, in this process, as its `__main__`.

    The caller must return to the end of the interpreter afterwards, which then does what it does for every program:
    waits for threads, calls atexit functions, flushes.

    An error of the library's user (a call that cannot be right, a task that was lost) is one line, which names the line
    of the program, and an exit status; a program without a launcher has its traceback.

    Raises:
      BaseException: what else the program raised; the end of the interpreter handles it as usual.
    """
    for stream in (sys.stdout, sys.stderr):  # they are pipes now, and lines should be seen when they are written
        cast(io.TextIOWrapper, stream).reconfigure(line_buffering=True)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    try:
        if argv[0] == "-m":
            sys.argv = ["-m", *argv[2:]]
            if not getattr(sys.flags, "safe_path", False):
                sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]  # what `python -m` itself calls
        else:
            sys.argv = list(argv)
            if not getattr(sys.flags, "safe_path", False):
                sys.path.insert(0, os.path.dirname(os.path.realpath(argv[0])))
            main.__file__ = os.path.abspath(argv[0])
            with io.open_code(main.__file__) as file:
                code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
            exec(code, main.__dict__)
    except BaseException as error:
        explainer = program_errors.explainer()
        if explainer and isinstance(error, SystemExit) and error.code and not isinstance(error, Preempted):
            explainer.fail()  # it cannot see a SystemExit
        if explainer and (explained := explainer.explain(error)):
            status, line = explained
            explainer.fail()
            if sys.excepthook is sys.__excepthook__:
                print(f"{_place(error)}: {line}", file=sys.stderr)
            else:  # one of the program's own, which may report errors somewhere
                _hide_launcher_frames(sys.excepthook, type(error), error, error.__traceback__)
            sys.exit(status)
        sys.excepthook = functools.partial(_hide_launcher_frames, sys.excepthook)
        raise


def _place(error: BaseException) -> str:
    """Returns where in the program an error came up, as "train.py, line 12"."""
    file = getattr(sys.modules["__main__"], "__file__", "")
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f"{os.path.basename(file)}, line {lines[-1]}" if lines else os.path.basename(file)


def _hide_launcher_frames(
    hook: Callable[..., Any],
    kind: type[BaseException],
    error: BaseException,
    frames: types.TracebackType | None,
) -> None:
    """Shows an exception as it would look if the program had been started by `python` itself."""
    while frames and frames.tb_frame.f_code.co_filename in _LAUNCHER_FILES:
        frames = frames.tb_next
    hook(kind, error.with_traceback(frames), frames)


def execute(argv: Sequence[str]) -> None:
    """Replaces this process by a command; exits with 127, as a shell does, when there is no such command."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
    try:
        os.execvp(argv[0], list(argv))
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        os._exit(127)
