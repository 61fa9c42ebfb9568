"""Writes Kubernetes manifests as YAML: objects, lists, and scalars as JSON writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./\-]*")  # what every parser takes for text
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # but for these


def documents(*found: Mapping[str, object]) -> str:
    """Returns several documents with a separator between them."""
    return "---\n".join("\n".join(_lines(document)) + "\n" for document in found)


def _lines(value: object) -> list[str]:
    if not _is_nested(value):
        return [_scalar(value)]
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value)
        return [line for key, inner in entries.items() for line in _entry(f"{_scalar(key)}:", inner, "  ")]
    lines: list[str] = []
    for inner in cast("list[object]", value):
        first, *rest = _lines(inner)
        lines += [f"- {first}", *(f"  {line}" for line in rest)]
    return lines


def _entry(key: str, value: object, indent: str) -> list[str]:
    if _is_nested(value):
        return [key, *(indent + line for line in _lines(value))]
    return [f"{key} {_scalar(value)}"]


def _is_nested(value: object) -> bool:
    """Returns whether the value takes lines of its own: an object or a list that is not empty."""
    return isinstance(value, (dict, list)) and value not in ({}, [])


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # YAML has no surrogate pairs, and takes some characters that JSON leaves alone for ends of lines, or for none.
    return re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", json.dumps(value, ensure_ascii=False))
