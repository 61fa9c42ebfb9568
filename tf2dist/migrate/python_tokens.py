"""The tokens of a Python program of any version: names and strings with their lines, no syntax.

Python's own tokenizer refuses what Python 2 allowed (0777, backquotes), and its parser refuses `print x`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<comment>\#[^\n]*)
  | (?P<string>(?:\b[rRbBuUfF]{1,3})?(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
        |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
  | (?P<word>\b(?:from|import)\b)
  | (?P<name>[^\W\d]\w*(?:(?:\s|\\\n)*\.(?:\s|\\\n)*[^\W\d]\w*)*)
  | (?P<number>\d\w*)
  | (?P<joined>\\\n)
  | (?P<newline>\n)
  | (?P<operator>[^\s\w])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A piece of a program.

    Attributes:
      kind: "name" (dotted, as "tf.train.Server"), "string" (without its quotes), "operator", "number" or "newline",
        which are the ends of statements only: not those inside of brackets.
      line: where it begins, from 1; of the last part of a dotted name.
    """

    kind: str
    text: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a program; what belongs to none is passed over."""
    depth, line, position = 0, 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        kind, found = match.lastgroup or "", match[0]
        if kind == "name":
            yield Token(kind, re.sub(r"[\s\\]", "", found), line + found.count("\n"))
        elif kind == "word":  # in `from .a import b` the dot belongs to the a
            yield Token("name", found, line)
        elif kind == "string":
            yield Token(kind, found.lstrip("rRbBuUfF").strip("\"'"), line)
        elif kind == "newline":
            if not depth:
                yield Token(kind, found, line)
        elif kind in ("operator", "number"):
            depth = max(0, depth + (found in "([{") - (found in ")]}"))
            yield Token(kind, found, line)


def syntax_error(text: str) -> str | None:
    """Why this Python cannot parse the program, and where; None if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None
