"""Writes YAML, of which it needs little: objects, lists, and scalars as JSON writes them."""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./\-]*")  # what every parser takes for text
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # but for these


def documents(*found: dict) -> str:
    """Several documents, with a line between them."""
    return "---\n".join("\n".join(_lines(document)) + "\n" for document in found)


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _entry(f"{_scalar(key)}:", inner, "  ")]
    if isinstance(value, list) and value:
        lines = []
        for inner in value:
            first, *rest = _lines(inner)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _entry(key: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, (dict, list)) and value:
        return [key, *(indent + line for line in _lines(value))]
    return [f"{key} {_scalar(value)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # YAML has no surrogate pairs, and takes some characters that JSON leaves alone for ends of lines, or for none.
    return re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", json.dumps(value, ensure_ascii=False))
