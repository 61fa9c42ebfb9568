"""The project's own source files, as syntax trees."""

from __future__ import annotations

import ast
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


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` for such an expression, None for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None
