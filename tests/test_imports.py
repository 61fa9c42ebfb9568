"""What may import what: a launcher that waits for TensorFlow is a bad launcher, and the parts depend one way only."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
HEAVY = ("tensorflow", "keras", "numpy", "scipy", "sklearn", "matplotlib", "PIL", "tensorflow_datasets", "h5py")
# What a launcher, a command that is wrong, or a process that waits for its peers needs.
LIGHT = [
    "tf2dist",
    "tf2dist.cluster",
    "tf2dist.command",
    "tf2dist.environments",
    "tf2dist.slurm",
    "tf2dist.listening",
    "tf2dist.doctor",
    "tf2dist.names",
    "tf2dist.roles",
    "tf2dist.lifeline",
    "tf2dist.preflight",
    "tf2dist.quiet",
    "tf2dist.atomic",
    "tf2dist.pace",
    "tf2dist.placement",
    "tf2dist.joining",
    "tf2dist.data",
    "tf2dist.data.images",
    "tf2dist.data.framing",
    "tf2dist.data.prepared",
    "tf2dist.data.records",
    "tf2dist.data.download",
    "tf2dist.data.tfrecord",
    "tf2dist.data.tfrecord.__main__",
    "tf2dist.convert_checkpoint",
    "tf2dist.convert_checkpoint.find",
    "tf2dist.convert_checkpoint.names",
    "tf2dist.convert_checkpoint.__main__",
    "tf2dist.migrate.__main__",
    "trainers.flags",
    "trainers.job",
    "trainers.networks",
    "trainers.mnist",
    "trainers.progress",
]


def modules(package):
    """Dotted names and paths of all modules of a package."""
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path):
    """The dotted names that a file imports, at its top or inside of a function, as absolute names."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_light_modules_import_nothing_heavy():
    # Everything of `launch` belongs to the launcher. They are imported one after the other, and after each one it is
    # noted what came with it, so that the first that brings TensorFlow is named.
    names = LIGHT + [name for name, _ in modules("launch")]
    code = f"""
import importlib, sys
seen = set()
for name in {names!r}:
    importlib.import_module(name)
    found = [heavy for heavy in {HEAVY!r} if heavy in sys.modules and heavy not in seen]
    seen.update(found)
    print(name, *found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == names
    assert {name: found for name, *found in lines if found} == {}


def test_the_library_gives_its_names_without_tensorflow():
    code = """
import sys
import tf2dist
assert set(tf2dist.__all__) <= set(dir(tf2dist))
for name in ("Cluster", "ClusterError", "Task", "join", "Role", "role_of", "serve", "STRATEGIES"):
    assert getattr(tf2dist, name) is not None
print("tensorflow" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_every_public_name_is_there():
    import tf2dist

    for name in tf2dist.__all__:
        assert getattr(tf2dist, name) is not None
    with pytest.raises(AttributeError, match="'tf2dist' has no attribute 'fitt'"):
        _ = tf2dist.fitt


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("tf2dist", ("launch", "trainers", "benchmarks", "tests")),
        ("launch", ("trainers", "benchmarks", "tests")),
        ("trainers", ("benchmarks", "tests")),
    ],
)
def test_imports_go_one_way(package, forbidden):
    found = list(modules(package))
    assert found
    wrong = [f"{name} imports {other}" for name, path in found for other in imports(path)
             if other.partition(".")[0] in forbidden]  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize("package", ["tf2dist", "launch"])
def test_library_code_reads_no_flag(package):
    wrong = [name for name, path in modules(package) if any(o.startswith("absl.flags") for o in imports(path))]
    assert wrong == []


def test_the_import_finder_sees_every_form(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("import a.b\nfrom c import d\ndef f():\n    from e.f import g as h, i\n    import j as k\n")
    assert sorted(imports(file)) == ["a.b", "c.d", "e.f.g", "e.f.i", "j"]
