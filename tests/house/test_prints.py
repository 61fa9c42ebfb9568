"""Library code logs to the logger "tf2dist": it prints nothing and leaves the process's hooks and loggers alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.source import ROOT, dotted, modules, parsed, unaliased

# Commands, which talk to the person who runs them.
COMMANDS = ("tf2dist.__main__", "tf2dist.launch", "tf2dist.doctor")
HOOKS = ("sys.excepthook", "sys.unraisablehook", "threading.excepthook", "sys.stdout", "sys.stderr")
LEVELS = ("setLevel", "set_verbosity", "basicConfig", "disable", "addHandler", "captureWarnings")
LOGGING = ("debug", "info", "warning", "error", "critical", "exception", "log", "fatal")
ROOT_LOGGING = [f"{module}.{name}" for module in ("logging", "absl.logging") for name in LOGGING]
PRINTING = (
    "print",
    "builtins.print",
    "pprint",
    "pprint.pprint",
    "sys.stdout.write",
    "sys.stderr.write",
    "sys.stdout.writelines",
    "sys.stderr.writelines",
    "sys.stdout.buffer.write",
    "sys.stderr.buffer.write",
    "tf.print",
    "warnings.warn",
    "warnings.simplefilter",
    "warnings.filterwarnings",
)
OURS = "tf2dist"
# What a caller asks for, or what is undone at the end of a block.
ALLOWED = {
    "tf2dist/input/without_autotune.py": ["warnings.simplefilter"],  # inside of catch_warnings
    "tf2dist/migrate/python_tokens.py": ["warnings.simplefilter"],  # inside of catch_warnings
    "tf2dist/runtime/logging_setup.py": ["sys.stderr.write", "….setLevel"],  # launcher and trainers ask for it
    "tf2dist/runtime/placement_log.py": ["sys.stdout"],  # --log_device_placement asks for it
    "tf2dist/runtime/tensorflow_import.py": ["os.write(2, …)"],  # what TensorFlow has printed, if its import fails
}


def is_command(name: str) -> bool:
    """May a module print?"""
    return name.endswith("__main__") or any(f"{name}.".startswith(f"{command}.") for command in COMMANDS)


def findings(tree: ast.Module) -> list[str]:
    """Each print, replaced hook and changed level of another logger, as `LINE: WHAT`."""
    return [f"{line}: {what}" for line, what in sorted(set(_findings(unaliased(tree))))]


def _findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    ours = _our_loggers(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func) or ""
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in PRINTING or name.startswith(("traceback.print_", "sys.__std")) or name in ROOT_LOGGING:
                yield node.lineno, name
            elif attribute in LOGGING and _is_logger_of_others(node.func):
                yield node.lineno, f"….{attribute}"
            elif name == "os.write" and isinstance(node.args[0], ast.Constant) and node.args[0].value in (1, 2):
                yield node.lineno, f"{name}({node.args[0].value}, …)"
            elif attribute in LEVELS and not (isinstance(node.func, ast.Attribute) and _is_ours(node.func.value, ours)):
                if attribute != "disable" or name == "logging.disable":
                    yield node.lineno, name or f"….{attribute}"
            elif name == "setattr" and (hook := ".".join(ast.unparse(a).strip("'") for a in node.args[:2])) in HOOKS:
                yield node.lineno, hook
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            if dotted(node) in HOOKS:
                yield node.lineno, dotted(node) or ""
            elif node.attr == "propagate" and not _is_ours(node.value, ours):
                yield node.lineno, f"….{node.attr}"


def _is_ours(node: ast.AST, ours: set[str]) -> bool:
    return dotted(node) in ours or _is_our_logger(node)


def _is_our_logger(node: ast.AST) -> bool:
    """`logging.getLogger("tf2dist")` or one of its children."""
    if not isinstance(node, ast.Call) or (dotted(node.func) or "").rpartition(".")[2] != "getLogger" or not node.args:
        return False
    name = node.args[0]
    if isinstance(name, ast.Name):
        return name.id == "__name__"
    return isinstance(name, ast.Constant) and f"{name.value}.".startswith(f"{OURS}.")


def _is_logger_of_others(method: ast.AST) -> bool:
    """Is it a method of `logging.getLogger(...)` or `tf.get_logger()` of another package?"""
    of = method.value if isinstance(method, ast.Attribute) else method
    if not isinstance(of, ast.Call):
        return False
    return (dotted(of.func) or "").rpartition(".")[2] in ("getLogger", "get_logger") and not _is_our_logger(of)


def _our_loggers(tree: ast.Module) -> set[str]:
    """Names that a file gives to our loggers."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_our_logger(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_the_library_prints_nothing():
    files = [(name, path) for name, path in modules("tf2dist") if not is_command(name)]
    assert files
    found = {}
    for _, path in files:
        if lines := findings(parsed(path)):
            found[str(path.relative_to(ROOT))] = [line.partition(": ")[2] for line in lines]
    assert found == ALLOWED


FORBIDDEN = {
    "print('x')": "1: print",
    "def f():\n    print('x', file=sys.stderr)": "2: print",
    "sys.stderr.write('x')": "1: sys.stderr.write",
    "traceback.print_exc()": "1: traceback.print_exc",
    "os.write(2, b'x')": "1: os.write(2, …)",
    "sys.__stderr__.write('x')": "1: sys.__stderr__.write",
    "warnings.warn('x')": "1: warnings.warn",
    "sys.excepthook = hook": "1: sys.excepthook",
    "threading.excepthook = hook": "1: threading.excepthook",
    "setattr(sys, 'excepthook', hook)": "1: sys.excepthook",
    "sys.stdout = file": "1: sys.stdout",
    "tf.get_logger().setLevel('ERROR')": "1: ….setLevel",
    "logging.getLogger().setLevel(10)": "1: ….setLevel",
    "logging.getLogger('tensorflow').setLevel(10)": "1: ….setLevel",
    "log = logging.getLogger('absl')\nlog.setLevel(10)": "2: log.setLevel",
    "logging.getLogger('absl').propagate = False": "1: ….propagate",
    "absl.logging.set_verbosity(1)": "1: absl.logging.set_verbosity",
    "logging.basicConfig()": "1: logging.basicConfig",
    "logging.disable()": "1: logging.disable",
    "logging.warning('x')": "1: logging.warning",
    "from absl import logging\nlogging.error('x')": "2: absl.logging.error",
    "tf.get_logger().warning('x')": "1: ….warning",
    "logging.getLogger().addHandler(h)": "1: ….addHandler",
    "from warnings import warn\nwarn('x')": "2: warnings.warn",
    "from sys import stderr\nstderr.write('x')": "2: sys.stderr.write",
    "sys.stdout.buffer.write(b'x')": "1: sys.stdout.buffer.write",
    "warnings.simplefilter('ignore')": "1: warnings.simplefilter",
}


@pytest.mark.parametrize("code", FORBIDDEN)
def test_the_finder_sees(code):
    assert FORBIDDEN[code] in findings(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "_log = logging.getLogger('tf2dist')\n_log.setLevel(logging.INFO)\n_log.warning('x')",
        "logging.getLogger('tf2dist.cluster').propagate = False",
        "'print(x)', file.write('x'), gc.disable(), previous is sys.excepthook",
    ],
)
def test_the_finder_lets_pass(code):
    assert findings(ast.parse(code)) == []


def test_which_modules_may_print():
    assert is_command("tf2dist.launch.backends.local")
    assert is_command("tf2dist.migrate.__main__")
    assert is_command("tf2dist.doctor")
    assert not is_command("tf2dist.cluster.rendezvous")
    assert not is_command("tf2dist.launcher")
