"""The project's own source files, as syntax trees."""

from __future__ import annotations

import ast
import copy
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]


def modules(package: str) -> Iterator[tuple[str, pathlib.Path]]:
    """Dotted names and paths of all modules of a package."""
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def parsed(path: pathlib.Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


def unaliased(tree: ast.Module) -> ast.Module:
    """A copy in which what a file imports under another name has its own: `keras.src` of `import keras as k; k.src`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    names |= {short: "tf" for short, full in names.items() if full == "tensorflow"}
    return _Unaliased(names).visit(copy.deepcopy(tree))


class _Unaliased(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]):
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id not in self._names:
            return node
        first, *others = self._names[node.id].split(".")
        full: ast.expr = ast.Name(first, ast.Load())
        for part in others:
            full = ast.copy_location(ast.Attribute(full, part, ast.Load()), node)
        return ast.copy_location(full, node)


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` for such an expression, None for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None
