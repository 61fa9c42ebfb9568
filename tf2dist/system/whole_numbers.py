"""Whole numbers in texts from elsewhere: Python's own `int` takes other scripts' digits, and refuses very many."""

from __future__ import annotations

_DIGITS = 18  # at most; such a number fits into 64 bits


def whole_number(text: str) -> int | None:
    """Returns the number that a text of the digits 0 to 9 means, from 0 on; None for anything else, or over 10**18."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None
