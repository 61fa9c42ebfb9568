"""The table of docs/mapping.md: every link leads somewhere, every symbol is real, every row has a test that runs."""

import ast
import importlib
import pathlib
import re

import pytest

from tf2dist.migrate import concepts

ROOT = pathlib.Path(__file__).parents[2]
MAPPING = ROOT / "docs" / "mapping.md"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_SYMBOL = re.compile(r"`[^`]*`( \(\*gone\*\))?")
_NAME = re.compile(r"\btf\.[\w.]*\w")


def table_rows():
    """Anchor, and the cells of each row."""
    for line in MAPPING.read_text().splitlines():
        if line.startswith('| <a id="'):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            yield re.search(r'id="([\w-]+)"', cells[0])[1], cells


ROWS = dict(table_rows())


def functions(path):
    """The functions of a Python file by name."""
    return {n.name: n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def links(text):
    return [(name.strip("`"), target) for name, target in _LINK.findall(text)]


def test_rows_are_those_that_migrate_knows():
    assert [row for row, _ in table_rows()] == list(ROWS)  # none twice
    assert sorted(ROWS) == sorted(c.row for c in concepts.CONCEPTS)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_its_parts(row):
    cells = ROWS[row]
    assert len(cells) == 4
    assert all(cells)
    assert cells[0].count("<br>") <= 3


@pytest.mark.parametrize("row", ROWS)
def test_its_test_exists_and_is_never_skipped(row):
    ((name, target),) = links(ROWS[row][3])
    path = MAPPING.parent / target
    assert path.resolve().is_relative_to(ROOT / "tests" / "parity")
    test = functions(path)[name]
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    assert not [mark for mark in marks if "skip" in mark or "xfail" in mark]
    assert "pytest.skip" not in path.read_text()
    assert "importorskip" not in path.read_text()


def test_every_parity_test_is_linked():
    linked = {(pathlib.Path(target).name, name) for cells in ROWS.values() for name, target in links(cells[3])}
    for path in sorted((ROOT / "tests" / "parity").glob("test_*.py")):
        if not path.name.startswith(("test_convert", "test_processes")):  # of the command, of the tests themselves
            tests = {(path.name, name) for name in functions(path) if name.startswith("test_")}
            assert tests <= linked


@pytest.mark.parametrize("row", ROWS)
def test_what_is_linked_is_there(row):
    """The file exists, and what the link names comes from it."""
    for name, target in links(ROWS[row][1]):
        path = (MAPPING.parent / target).resolve()
        assert path.is_file(), target
        if not re.match(r"(tf2dist|trainers|launch)\.", name):
            continue
        dotted = name.partition("(")[0]
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        last = dotted.rpartition(".")[2]
        assert dotted == module or last in functions(path), f"{name} is not in {target}"
        try:
            importlib.import_module(dotted)
        except ModuleNotFoundError:
            owner, _, last = dotted.rpartition(".")
            assert hasattr(importlib.import_module(owner), last), dotted


def real(tf, name):
    """Is this name there in tf.compat.v1? `server` and such are objects of a program."""
    found = tf.compat.v1
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_symbols_are_real_or_marked_as_gone(tf):
    count = 0
    for row, cells in ROWS.items():
        for code in _SYMBOL.finditer(cells[0]):
            for name in _NAME.findall(code[0]):
                count += 1
                if code[1]:
                    assert not real(tf, name), f"{row}: {name} is not gone"
                else:
                    assert real(tf, name), f"{row}: {name} is gone"
    assert count > 50


def test_symbols_of_the_table_are_known_to_migrate():
    for cells in ROWS.values():
        for code in _SYMBOL.finditer(cells[0]):
            for name in _NAME.findall(code[0]):
                name = name.replace("tf.", "tensorflow.", 1)
                known = concepts.of_name(name) or name.startswith(
                    ("tensorflow.contrib.layers", "tensorflow.contrib.learn")
                )
                assert known or name.rpartition(".")[2] in ("float32", "uint8", "add_n"), name


def test_symbols_that_migrate_knows_were_real(tf):
    """Of TensorFlow 1 as it is still carried; what is not there was in contrib, or went early."""
    gone = {name for name in concepts.symbols() if not real(tf, name)}
    before_1_0 = (
        "initialize_local",
        "_summary",
        "SummaryWriter",
        "merge_",
        "variable_op_scope",
        "SyncReplicasOptimizerV2",
    )
    left = {
        n for n in gone if not n.startswith(("tf.contrib.", "tf.estimator")) and not any(b in n for b in before_1_0)
    }
    assert left == set()


def test_links_of_the_readme_lead_to_rows():
    text = (ROOT / "README.md").read_text()
    anchors = re.findall(r"docs/mapping\.md#([\w-]+)", text)
    assert len(anchors) >= 12
    assert set(anchors) <= set(ROWS) | {"checkpoints-of-tensorflow-1"}
