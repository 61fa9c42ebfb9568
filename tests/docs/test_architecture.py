"""The documents name only what is there, and ARCHITECTURE.md leaves no room out."""

import pathlib
import re
import tomllib

import pytest

from tests.house.source import ROOT

DOCUMENTS = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
EXPLAINED = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
TOPS = ("tf2dist", "trainers", "launch", "tests", "docs", "benchmarks")
ROOMS = sorted(
    path.stem
    for path in (ROOT / "tf2dist").iterdir()
    if not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())
)


def text_of(document):
    """A document without the addresses of other places."""
    return re.sub(r"https?://[^\s)]+", "", document.read_text())


def paths(text):
    """What looks like a path of ours: below one of our directories, or the name of a file with one of our endings."""
    found = re.findall(rf"(?<![\w./-])(?:{'|'.join(TOPS)})/[\w./-]*", text)
    found += re.findall(r"`([\w./-]+\.(?:py|md|sh|toml))`", text)
    return sorted({path.rstrip(".") for path in found if not re.search(r"\bNAME\b", path)})


def exists(path, document):
    """Whether a path is there: from the root, from tf2dist, or beside the document; a bare name anywhere in tf2dist."""
    starts = (ROOT, ROOT / "tf2dist", document.parent)
    if any((start / path).exists() for start in starts):
        return True
    return "/" not in path and any((ROOT / "tf2dist").rglob(path))


@pytest.fixture(scope="module")
def words():
    """Every word in the sources."""
    found = set()
    for top in ("tf2dist", "trainers", "launch", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            if path != pathlib.Path(__file__):
                found.update(re.findall(r"\w+", path.read_text()))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_exists(document):
    examples = {"my_script.py", "cluster.toml"}  # of a user
    assert [p for p in paths(text_of(document)) if p not in examples and not exists(p, document)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(document))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_can_be_found(document):
    names = set(re.findall(rf"(?<![\w./-])(?:{'|'.join(TOPS)})(?:\.[A-Za-z_]\w*)+", text_of(document)))
    wrong = []
    for name in sorted(names):
        top, *parts = name.split(".")
        path = ROOT / top
        while parts and ((path / parts[0]).is_dir() or (path / f"{parts[0]}.py").exists()):
            path /= parts.pop(0)
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if parts and parts[0] not in ("NAME", "py", "md") and not re.search(rf"\b{parts[0]}\b", source.read_text()):
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize("document", EXPLAINED, ids=lambda path: path.name)
def test_every_name_is_in_the_sources(document, words):
    """`fit`, `PreparedModel.build`, `WORKERS_GRACE`: a name in backquotes with an underscore or a capital."""
    names = re.findall(r"`([A-Za-z_][\w.]*)`", text_of(document))
    parts = {part for name in names if not re.search(r"\.(?:py|md|sh|toml|json)$", name) for part in name.split(".")}
    ours = {part for part in parts if "_" in part or not part.islower()} - {"NAME"}
    assert ours
    assert sorted(ours - words) == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_described(room):
    place = f"`tf2dist/{room}.py`" if (ROOT / "tf2dist" / f"{room}.py").exists() else f"`tf2dist/{room}/`"
    rows = [line for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines() if line.startswith(f"| {place} |")]
    assert len(rows) == 1


def test_the_picture_has_the_order_of_imports():
    """Line by line what the contract in pyproject.toml says."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")
    above = {"__main__"}  # what calls commands of all rooms
    rooms = [{name.strip(" ()") for name in layer.split("|")} - above for layer in layers]
    picture = (ROOT / "ARCHITECTURE.md").read_text().split("+-- tf2dist/")[1].split("```")[0]
    lines = [re.split(r"\s{3,}", line.lstrip(" |+->"))[0] for line in picture.splitlines()]
    drawn = [set(re.findall(r"[a-z_]+", line)) & set(ROOMS) for line in lines]
    assert [names for names in drawn if names] == [names for names in rooms if names]


def test_the_finders_see():
    text = "`tf2dist/gone.py`, trainers/gone/here.py, `tests/NAME` https://x.org/tf2dist/y.py `gone.md` a/launch/b"
    assert paths(re.sub(r"https?://\S+", "", text)) == ["gone.md", "tf2dist/gone.py", "trainers/gone/here.py"]
    assert not exists("tf2dist/gone.py", ROOT / "README.md")
    assert exists("training/api.py", ROOT / "README.md")
