"""What the names of a program stand for: aliases of modules, classes and objects that were made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tf2dist.migrate import python_tokens
from tf2dist.migrate.concepts import Concept, of_name, of_string, of_word
from tf2dist.migrate.python_tokens import Token

# Where tf may come from and still be TensorFlow: a module of the program's own, or nowhere, as in a cell of a notebook.
_OWN = re.compile(r"^$|^\.|tf|\.tensorflow")


@dataclass(frozen=True, order=True)
class Use:
    """A line that uses something of TensorFlow 1: `symbol` as "tf.train.Server"."""

    line: int
    symbol: str
    concept: Concept


def uses(text: str) -> list[Use]:
    """Every use of a known concept, by line; each once a line."""
    found = list(python_tokens.tokens(text))
    aliases, objects = _aliases(found)
    return sorted(set(_uses(found, aliases, objects)), key=lambda use: (use.line, use.symbol))


def _uses(tokens: list[Token], aliases: dict[str, str], objects: set[str]) -> Iterator[Use]:
    program = any(t.kind == "name" and t.text.partition(".")[0] in ("tf", "tensorflow") for t in tokens)
    imports = {number for start, end in _imports(tokens) for number in range(start, end)}
    for start, end in _imports(tokens):
        for name, _, line in _imported(tokens[start:end]):
            if concept := of_name(name):
                yield Use(line, short(name), concept)
    for number, token in enumerate(tokens):
        if number in imports:
            continue
        if token.kind == "string" and (concept := of_string(token.text)):
            yield Use(token.line, repr(token.text), concept)
        if token.kind != "name":
            continue
        meant, parts = resolve(token.text, aliases), token.text.split(".")
        after = [t.text for t in tokens[number + 1 : number + 5]]
        named = [(part, of_word(part)) for part in reversed(parts)]
        if after[:1] == ["="]:
            named.append((parts[-1], of_word(f"{parts[-1]}=")))
        if token.text not in objects:  # not one that was made elsewhere, and is just passed on
            named.append((short(meant), of_name(meant)))
        if program:
            last_two = ".".join(part.lstrip("_") for part in parts[-2:])
            named.append((last_two, of_word(last_two)))
        yield from [Use(token.line, symbol, concept) for symbol, concept in named if concept][:1]
        if after[:3] == ["(", ")", "."] and len(after) == 4 and (concept := of_name(f"{meant}.{after[3]}")):
            yield Use(tokens[number + 4].line, short(f"{meant}.{after[3]}"), concept)


def resolve(name: str, aliases: dict[str, str]) -> str:
    """The full name: "tf.train.Server" is "tensorflow.train.Server" after `import tensorflow as tf`."""
    for _ in range(10):  # aliases of aliases; a circle of them ends too
        parts = name.split(".")
        for end in range(min(len(parts), 8), 0, -1):  # no alias has more
            head = ".".join(parts[:end])
            if head in aliases and aliases[head] != head:
                name = ".".join([aliases[head], *parts[end:]])
                break
        else:
            break
    return name


def short(name: str) -> str:
    """As people write it."""
    for prefix in ("tensorflow.compat.v1.", "tensorflow.compat.v2.", "tensorflow."):
        if name.startswith(prefix) and not name.startswith("tensorflow.python."):
            return "tf." + name.removeprefix(prefix)
    return name


def _aliases(tokens: list[Token]) -> tuple[dict[str, str], set[str]]:
    """What the program calls things that it imports, or assigns from a name or a call; and which came from calls."""
    aliases: dict[str, str] = {}
    objects: set[str] = set()
    for start, end in _imports(tokens):
        for name, alias, _ in _imported(tokens[start:end]):
            if alias != name:
                aliases.setdefault(alias, name)
    if _OWN.search(aliases.get("tf", "")):
        aliases["tf"] = "tensorflow"
    for number in range(len(tokens) - 3):
        target, equals, value, after = tokens[number : number + 4]
        begins = number == 0 or tokens[number - 1].kind == "newline" or tokens[number - 1].text in (":", ";")
        if not begins or (target.kind, equals.text, value.kind) != ("name", "=", "name"):
            continue
        meant = resolve(value.text, aliases)
        called = after.text == "(" and meant.rpartition(".")[2][:1].isupper()  # a class: other results are unknown
        if (called or after.kind == "newline" or after.text == ";") and _of_tensorflow(meant):
            aliases.setdefault(target.text, value.text)
            if called:
                objects.add(target.text)
    return aliases, objects


def _of_tensorflow(name: str) -> bool:
    return name.partition(".")[0] == "tensorflow"


def _imports(tokens: list[Token]) -> Iterator[tuple[int, int]]:
    """First and last token of each import statement."""
    number = 0
    while number < len(tokens):
        begins = number == 0 or tokens[number - 1].kind == "newline" or tokens[number - 1].text in (":", ";")
        if begins and tokens[number].text in ("import", "from"):
            end = number
            while end < len(tokens) and tokens[end].kind != "newline" and tokens[end].text != ";":
                end += 1
            yield number, end
            number = end
        number += 1


def _imported(statement: list[Token]) -> Iterator[tuple[str, str, int]]:
    """Full name, name in the program and line of each thing that a statement imports."""
    words = [token for token in statement if token.text not in "(),"]
    texts = [token.text for token in words]
    prefix, at = "", 1
    if texts and texts[0] == "from":
        if "import" not in texts:
            return
        at = texts.index("import") + 1
        prefix = "".join(texts[1 : at - 1]) + "."
    while at < len(words):
        name, token = texts[at], words[at]
        renamed = at + 2 < len(words) and texts[at + 1] == "as"
        if token.kind == "name":
            yield prefix + name, texts[at + 2] if renamed else name, token.line
        at += 3 if renamed else 1
