"""What importing a module brings along: a launcher that waits for TensorFlow is a bad launcher."""

import ast
import importlib
import subprocess
import sys

import pytest

from tests.house.source import ROOT, modules, parsed

HEAVY = ("tensorflow", "keras", "numpy", "scipy", "sklearn", "matplotlib", "PIL", "tensorflow_datasets", "h5py")
# Rooms that a launcher needs, or a command that is wrong, or a process that waits for its peers.
LIGHT_ROOMS = ("tf2dist/system", "tf2dist/cluster", "tf2dist/launch", "tf2dist/migrate", "launch")
# And what they need of the other rooms.
LIGHT = [
    "tf2dist",
    "tf2dist.__main__",
    "tf2dist.errors",
    "tf2dist.doctor",
    "tf2dist.runtime.tensorflow_import",
    "tf2dist.runtime.placement_log",
    "tf2dist.runtime.session",
    "tf2dist.execution.steps_per_execution",
    "tf2dist.data",
    "tf2dist.data.image_sources",
    "tf2dist.data.tfrecord_framing",
    "tf2dist.data.tfds_directory",
    "tf2dist.data.tfrecord_arrays",
    "tf2dist.data.download",
    "tf2dist.data.tfrecord",
    "tf2dist.data.tfrecord.__main__",
    "tf2dist.convert_checkpoint",
    "tf2dist.convert_checkpoint.find_checkpoint",
    "tf2dist.convert_checkpoint.model_argument",
    "tf2dist.convert_checkpoint.name_map",
    "tf2dist.convert_checkpoint.match_variables",
    "tf2dist.convert_checkpoint.__main__",
    "trainers.common.shared_flags",
    "trainers.common.training_flags",
    "trainers.common.exit_status",
    "trainers.common.main",
    "trainers.mnist_networks",
    "trainers.mnist",
    "trainers.pi_progress",
]


def imports(path):
    """The dotted names that a file imports, at its top or inside of a function, as absolute names."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_light_modules_import_nothing_heavy():
    # They are imported one after the other, and after each one it is noted what came with it, so that the first that
    # brings TensorFlow is named.
    names = LIGHT + [name for room in LIGHT_ROOMS for name, _ in modules(room)]
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


@pytest.mark.parametrize("package", ["tf2dist", "launch", "benchmarks"])  # two trainers cannot define the same flag
def test_every_module_can_be_imported(package):
    names = [name for name, _ in modules(package)]
    assert names
    for name in names:
        importlib.import_module(name)


@pytest.mark.parametrize("package", ["tf2dist", "trainers", "launch", "benchmarks"])
def test_imports_are_absolute(package):
    found = [name for name, path in modules(package) for node in ast.walk(parsed(path))
             if isinstance(node, ast.ImportFrom) and node.level]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("package", ["tf2dist", "launch"])
def test_library_code_reads_no_flag(package):
    wrong = [name for name, path in modules(package) if any(o.startswith("absl.flags") for o in imports(path))]
    assert wrong == []


def test_the_import_finder_sees_every_form(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("import a.b\nfrom c import d\ndef f():\n    from e.f import g as h, i\n    import j as k\n")
    assert sorted(imports(file)) == ["a.b", "c.d", "e.f.g", "e.f.i", "j"]


# Modules of other rooms that are named in strings, where a contract does not see them, and why.
NAMED = {
    "tf2dist.__main__": "the commands, each imported when it is called",
    "tf2dist.launch.backends.local": "what the fork server imports once for all processes of a job",
}


def modules_in_strings(package, top):
    """Modules of a package, with those of other rooms of it that strings in them name."""
    known = {name for name, _ in modules(top)}
    for name, path in modules(package):
        strings = {n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        room = ".".join(name.split(".")[:2])
        if named := sorted(s for s in strings & known if s != top and not f"{s}.".startswith(f"{room}.")):
            yield name, named


def test_no_string_imports_what_no_import_may():
    found = dict(modules_in_strings("tf2dist", "tf2dist"))
    assert set(found) == set(NAMED), found
