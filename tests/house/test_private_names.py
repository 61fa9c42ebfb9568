"""Only `tf2dist.compat` touches private parts of other packages; read from the syntax trees of all other files."""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Iterator

import pytest

from tests.house.source import ROOT, dotted, modules, parsed, unaliased

PACKAGES = ("tf2dist", "trainers", "launch", "benchmarks")
COMPAT = ROOT / "tf2dist" / "compat"
PRIVATE_MODULES = ("keras.src", "tensorflow.python", "tf.python", "tf_keras.src")
FOREIGN = ("keras", "tensorflow", "tf", "tf_keras")  # as they are imported
# Underscored names of the standard library that may be used, and why.
ALLOWED_NAMES = {
    "os._exit": "ends a process without its clean-up",
    "sys._getframe": "the frame that runs",
    "sys._current_frames": "the frames that run, of all threads; faulthandler knows neither their names nor lines",
    "runpy._run_module_as_main": "what `python -m` runs a module by; there is no public way",
    "subprocess._args_from_interpreter_flags": "the options of this Python, for a child's; multiprocessing uses it so",
}
NAMEDTUPLE = ("_fields", "_asdict", "_replace", "_make")  # public; underscored to leave the names to the fields
BY_NAME = ("getattr", "setattr", "hasattr", "delattr")


def is_private(name: str) -> bool:
    """`_x` and `__x`, and not `__x__`."""
    if name == "_" or name in NAMEDTUPLE:
        return False
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def findings(tree: ast.Module) -> list[str]:
    """Each touch of a private part of something that the file does not define, as `LINE: WHAT`."""
    return [f"{line}: {what}" for line, what in sorted(set(_findings(unaliased(tree))))]


def _findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    own = set(_defined(tree))
    own_receivers = _receivers(tree, own)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from ((line, name.name) for name in node.names if _is_private_import(name.name))
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                full = f"{node.module}.{name.name}"
                if _is_private_import(full):
                    yield line, full
        elif isinstance(node, ast.Attribute):
            full = dotted(node) or f"….{node.attr}"
            if _is_private_module(full) or node.attr == "__internal__":
                yield line, full
            elif is_private(node.attr) and node.attr not in own and full not in ALLOWED_NAMES:
                if id(node.value) not in own_receivers:
                    yield line, full
            elif node.attr == "__class__" and isinstance(node.ctx, ast.Store):
                yield line, f"{full} = …"
        elif isinstance(node, ast.Call):
            yield from _by_string(node, own, own_receivers)
        elif isinstance(node, ast.Subscript) and _is_namespace(node.value):
            name = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(name, str) and is_private(name) and name not in own:
                yield line, f"…[{name!r}]"


def _by_string(call: ast.Call, own: set[str], own_receivers: set[int]) -> Iterator[tuple[int, str]]:
    """Calls that name a private attribute or module in a string."""
    function = (dotted(call.func) or "").rpartition(".")[2]
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    strings = [a.value if isinstance(a, ast.Constant) and isinstance(a.value, str) else None for a in given]
    if function in ("import_module", "__import__", "LazyLoader"):
        yield from ((call.lineno, s) for s in strings if s and _is_private_import(s))
    elif function in BY_NAME and len(strings) > 1 and strings[1]:
        name = strings[1]
        if _is_private_module(full := f"{dotted(call.args[0])}.{name}") and name != "__internal__":
            yield call.lineno, full
        elif name == "__internal__" or (is_private(name) and name not in own and id(call.args[0]) not in own_receivers):
            yield call.lineno, f"{function}(…, {name!r})"
    elif function in ("attrgetter", "methodcaller"):
        for name in strings:
            if name and any(is_private(part) and part not in own for part in name.split(".")):
                yield call.lineno, f"{function}({name!r})"


def _is_private_import(name: str) -> bool:
    return _is_private_module(name) or any(map(is_private, name.split(".")))


def _is_private_module(name: str) -> bool:
    return any(f"{name}.".startswith(f"{private}.") for private in PRIVATE_MODULES) or "__internal__" in name.split(".")


def _is_namespace(node: ast.AST) -> bool:
    """`vars(x)` or `x.__dict__`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "vars"
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _defined(tree: ast.Module) -> Iterator[str]:
    """Private attributes and methods that the classes of a file define."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield inner.name
                elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                    yield inner.target.id
                elif isinstance(inner, ast.Assign):
                    yield from (target.id for target in inner.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
            yield node.attr


def _receivers(tree: ast.Module, own: set[str]) -> set[int]:
    """Ids of the expressions `self`, `cls` and `super()` in classes that inherit from no class of a foreign package."""
    foreign = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FOREIGN
        for name in node.names
    } | set(FOREIGN)
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and foreign.isdisjoint(
            (dotted(b) or "").partition(".")[0] for b in node.bases
        ):
            for inner in ast.walk(node):
                is_super = isinstance(inner, ast.Call) and dotted(inner.func) == "super"
                if is_super or (isinstance(inner, ast.Name) and inner.id in ("self", "cls")):
                    found.add(id(inner))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_only_compat_knows_secrets(package):
    files = [(name, path) for name, path in modules(package) if COMPAT not in path.parents]
    assert files
    assert [f"{path.relative_to(ROOT)}:{found}" for _, path in files for found in findings(parsed(path))] == []


FORBIDDEN = {
    "import keras.src": "1: keras.src",
    "import keras.src.losses.loss as losses": "1: keras.src.losses.loss",
    "from keras.src.losses import loss": "1: keras.src.losses.loss",
    "from keras import src": "1: keras.src",
    "import keras\nkeras.src.losses.loss": "2: keras.src.losses",
    "from tensorflow.python.eager import context": "1: tensorflow.python.eager.context",
    "from tensorflow import python": "1: tensorflow.python",
    "def f():\n    import tensorflow.python.client": "2: tensorflow.python.client",
    "import tensorflow as tf\ntf.python.eager": "2: tf.python.eager",
    "import tensorflow as tf\ntf.__internal__.distribute": "2: tf.__internal__",
    "from tensorflow.__internal__ import distribute": "1: tensorflow.__internal__.distribute",
    "getattr(tf, '__internal__')": "1: getattr(…, '__internal__')",
    "importlib.import_module('keras.src.backend')": "1: keras.src.backend",
    "importlib.import_module(name='keras.src')": "1: keras.src",
    "from importlib import import_module as load\nload('keras.src')": "2: keras.src",
    "import keras as k\nk.src.backend": "2: keras.src.backend",
    "import tensorflow as t\nt.python.eager": "2: tf.python.eager",
    "from keras import losses as l\nl._x": "2: keras.losses._x",
    "import keras._tf_keras.keras": "1: keras._tf_keras.keras",
    "from keras._tf_keras import keras": "1: keras._tf_keras.keras",
    "getattr(keras, 'src')": "1: keras.src",
    "getattr(tf, 'python')": "1: tf.python",
    "__import__('tensorflow.python')": "1: tensorflow.python",
    "context._context": "1: context._context",
    "tf.config._x()": "1: tf.config._x",
    "model.optimizer._iterations.assign(0)": "1: model.optimizer._iterations",
    "made()._iterations": "1: …._iterations",
    "optimizer.__mangled": "1: optimizer.__mangled",
    "optimizer._x = 1": "1: optimizer._x",
    "del optimizer._x": "1: optimizer._x",
    "getattr(optimizer, '_x', None)": "1: getattr(…, '_x')",
    "hasattr(optimizer, '_x')": "1: hasattr(…, '_x')",
    "setattr(optimizer, '_x', 1)": "1: setattr(…, '_x')",
    "object.__setattr__(optimizer, 'x', 1)\nvars(optimizer)['_x']": "2: …['_x']",
    "optimizer.__dict__['_x'] = 1": "1: …['_x']",
    "operator.attrgetter('optimizer._x')": "1: attrgetter('optimizer._x')",
    "variable.__class__ = Ours": "1: variable.__class__ = …",
    "from other import _helper": "1: other._helper",
    "os._unheard_of": "1: os._unheard_of",
    "class A(keras.Model):\n    def f(self):\n        return self._of_keras": "3: self._of_keras",
    "class A(keras.Model):\n    def f(self):\n        super()._of_keras()": "3: …._of_keras",
    "from keras import Model\nclass A(Model):\n    def f(self):\n        getattr(self, '_x')": "4: getattr(…, '_x')",
}


@pytest.mark.parametrize("code", FORBIDDEN)
def test_the_finder_sees(code):
    assert FORBIDDEN[code] in findings(ast.parse(code))


ALLOWED_CODE = [
    "import keras\nkeras.losses.Loss\nkeras.__version__",
    "type(x).__name__, x.__class__, x.__dict__['y']",
    "from __future__ import annotations",
    "os._exit(1), sys._getframe(1)",
    "'keras.src', 'tensorflow.python.training'",
    "_ = 1\nx._",
    "point._fields, point._asdict(), hasattr(x, '_fields')",
    """
    class A(Ours):
        def __init__(self, x):
            self._x = x
        def __eq__(self, other):
            return self._x == other._x and self._of_parent == super()._of_parent
        @classmethod
        def f(cls):
            return cls._count
    """,
    """
    class A(keras.Model):
        _kind: int = 0
        def build(self, shape):
            self._table = self._make()
        def _make(self):
            return getattr(self, "_table", None)
    """,
]


@pytest.mark.parametrize("code", ALLOWED_CODE)
def test_the_finder_lets_pass(code):
    assert findings(ast.parse(textwrap.dedent(code))) == []


def overridden(kind: type) -> list[str]:
    """Private names that a class defines and that a class of Keras or TensorFlow before it has already."""
    strangers = [c for c in kind.__mro__ if c.__module__.partition(".")[0] in FOREIGN]
    return [n for n in vars(kind) if is_private(n) and not n.startswith("__") and any(n in vars(s) for s in strangers)]


# What Python itself, Keras's serialization or `abc` put into every class.
GIVEN = {"_abc_impl", "_is_protocol", "_is_runtime_protocol"}


def test_no_class_overrides_a_private_part():
    found = []
    for name, path in modules("tf2dist"):
        if COMPAT in path.parents or name.endswith("__main__"):
            continue
        for kind in vars(importlib.import_module(name)).values():
            if isinstance(kind, type) and kind.__module__ == name:
                found += [f"{name}.{kind.__name__}.{private}" for private in overridden(kind) if private not in GIVEN]
    assert found == []


def test_the_finder_sees_what_is_overridden():
    import keras

    class Ours(keras.optimizers.SGD):
        def _get_variable_index(self, variable):
            return 0

        def _own(self):
            return None

    assert "_get_variable_index" in overridden(Ours)
    assert "_own" not in overridden(Ours)
