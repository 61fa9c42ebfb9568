"""What users, files and other hosts say to the launcher, written wrongly: it is done as it was said, or refused."""

import argparse
import contextlib
import io
import os
import shlex
import subprocess

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.conftest import quickly
from tests.hostile import bounded, contents, examples, parsed, texts, variables
from tests.launch.kubelet import expand
from tf2dist.errors import UsageError
from tf2dist.launch import backend, hostfile
from tf2dist.launch.backends import ssh, ssh_connection
from tf2dist.launch.command_line import main


@pytest.fixture(scope="module", autouse=True)
def directory_of_others():
    """Tests here change the directory; those of other files find it as it was."""
    with contextlib.chdir("."):
        yield


_HOSTS = ("a,b:2", "me@a.example,[fe80::1]:2", "a")
_TOML = (
    'worker = ["a", "b:2222"]\nps = ["c"]\nchief = ["me@a"]\nevaluator = ["a"]\n',
    '# ours\nworker = [\n  "[::1]:7000", # here\n]\n',
)
_FLAGS = {
    "hosts": _HOSTS,
    "hostfile": ("/dev/null", "/nowhere"),
    "cluster": ("/dev/null", "/nowhere"),
    "ps": ("1", "0"),
    "workers": ("2", "1"),
    "port": ("7000",),
    "start_timeout": ("60", "0.5"),
    "stall_timeout": ("600", "0"),
    "grace": ("10",),
    "timeout": ("60",),
    "max_restarts": ("1",),
    "logs": ("logs",),
    "gpus_per_worker": ("1",),
    "gpu_memory": ("1000",),
    "connect_timeout": ("10",),
    "python": ("python",),
    "directory": ("/tmp",),
    "env": ("A=1", "B"),
    "nodes": ("2",),
    "cpus_per_task": ("2",),
    "gpus_per_task": ("1",),
    "partition": ("short",),
    "account": ("me",),
    "time": ("1:00:00", "2-0", "infinite"),
    "output": ("a.out",),
    "max_requeues": ("5",),
    "sbatch": ("--exclusive",),
    "name": ("job",),
    "namespace": ("default",),
    "image": ("registry/name:tag",),
    "kind": ("jobset", "tfjob", "job"),
    "cpu": ("2", "0.5", "500m"),
    "memory": ("2Gi", "500Mi"),
    "gpus": ("1",),
    "claim": ("data",),
}
PROGRAM = ("json.tool", "x")
# What shells, ssh, Slurm, YAML and Kubernetes take for something else than text.
WORDS = (
    "two words", "it's", 'a "b"', "$(id)", "`id`", "$HOME", "${HOME}", "$$(A)", "$(A)", "a;b", "a|b", "a&b", "a>b", "*",
    "~", "a\nb", "a\\", "a\tb", "-x", "--", "-oProxyCommand=id", "#c", "!x", "%j", "{a}", "{0}", "{requeues}", "é",
    "😀", "\u2028", "\x85", "\x1b[2J", "\x7f", "a: b", "- a", "yes", "null", "1e3", "0x1", "~x", "", " ", "a #b", "a,b",
    "&a", "*a", "!!python/x", "<<EOF", "EOF", "\r", "\udcff",
)  # fmt: skip
_word = st.sampled_from(WORDS) | st.lists(st.sampled_from(WORDS), max_size=4).map("".join) | variables(*WORDS)


def launched(*arguments):
    """Exit status, standard output and standard error of `python -m launch`."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape", newline="")
    err = io.StringIO()
    with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
    out.flush()
    return status, out.buffer.getvalue().decode(errors="surrogateescape"), err.getvalue()


def right_or_refused(*arguments):
    """Standard output of a command that was right; None of one that was refused with 2, in one line."""
    status, out, err = launched(*arguments)
    assert status in (0, 2), err
    if status == 2:
        assert out == ""
        assert err.endswith("\n")
        assert err[:-1].isprintable(), err
        return None
    return out


@examples()
@given(texts(*_HOSTS))
def test_hosts(text):
    for name, slots in parsed(UsageError, hostfile.parse_hosts, text) or ():
        assert 0 < slots < 65536
        assert not name.startswith("-")


@pytest.mark.slow
@examples()
@given(contents("a\nb slots=2 # big\n\nc:1\n", "\ufeffa\r\nb:2\r\n"))
def test_host_files(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "hosts"
    path.write_bytes(content)
    found = parsed(UsageError, hostfile.read_hostfile, str(path))
    assert found is None or all(0 < slots < 65536 and not name.startswith("-") for name, slots in found)


@pytest.mark.slow
@examples()
@given(contents(*_TOML))
def test_cluster_files(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "cluster.toml"
    path.write_bytes(content)
    found = parsed(UsageError, hostfile.read_cluster_file, str(path))
    assert found is None or all(not name.startswith("-") for hosts in found.values() for name, _ in hosts)


@pytest.mark.parametrize(
    "content",
    [
        "worker = " + "[" * 5000,
        "x = " + "1" * 5000,
        "worker = [" + '"a",' * 10 + "1" * 5000 + "]",
        "a." * 5000 + "b = 1",
    ],
    ids=["nested", "number", "element", "dotted"],
)
def test_toml_of_too_much(tmp_path, content):
    (tmp_path / "cluster.toml").write_text(content)
    with pytest.raises(UsageError, match=r"--cluster="):
        hostfile.read_cluster_file(str(tmp_path / "cluster.toml"))


@pytest.mark.parametrize("flag", ["--ps", "--workers", "--hosts"])
def test_more_tasks_than_a_host_has_ports(flag):
    value = ",".join(f"a{n}:65535" for n in range(1000)) if flag == "--hosts" else "99999999999"
    for name in ("local", "ssh", "slurm", "k8s"):
        extra = ["--image=x"] if name == "k8s" else ["--hosts=a"] if name == "ssh" and flag != "--hosts" else []
        assert right_or_refused(name, f"{flag}={value}", "--dry_run", *extra, "--", *PROGRAM) is None


@pytest.mark.parametrize("name", quickly("local", backend.NAMES))
@examples(60)
@given(st.data())
def test_options(name, tmp_path_factory, data):
    """Any option of any backend, with values that are wrong, and no traceback."""
    os.chdir(tmp_path_factory.getbasetemp())

    parser = argparse.ArgumentParser()
    backend.find(name).add_arguments(parser)
    known = sorted(flag for flag in _FLAGS if f"--{flag}" in parser._option_string_actions)
    flags = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    given = [f"--{flag}={data.draw(variables(*_FLAGS[flag]))}" for flag in flags]
    assume(not any(flag == "--ssh" for flag in flags))
    needed = {
        "ssh": [] if {"hosts", "hostfile", "cluster"} & {*flags} else ["--hosts=a"],
        "k8s": [] if "image" in flags else ["--image=x"],
    }
    program = data.draw(st.just(PROGRAM) | st.tuples(variables("json.tool", "a.py", "a.b"), variables("x")))
    right_or_refused(name, *given, *needed.get(name, []), "--dry_run", "--", *program)


def test_a_value_that_argparse_drops():
    assert right_or_refused("k8s", "--image=x", "--cpu=--", "--dry_run", "--", *PROGRAM) is None


@examples(25)
@given(st.lists(_word, max_size=3), _word, _word.filter(lambda word: "=" not in word))
def test_what_a_batch_script_runs(tmp_path_factory, words, python, name):
    """Its srun has the very words, and nothing else of them is run; its options are those that were given."""
    os.chdir(tmp_path_factory.getbasetemp())
    script = right_or_refused(
        "slurm", f"--python={python}", f"--partition={name}", f"--output={name}", "--dry_run", "--", "json.tool", *words
    )
    if script is None:
        assert "\n" in name or python == "--" or name == "--"
        return
    lines = [line for line in script.split("\n") if line.startswith("#SBATCH ")]
    assert shlex.split("".join(f"{line[8:]} " for line in lines))[2:4] == [f"--partition={name}", f"--output={name}"]
    stub = """srun() { printf '%s\\0' "$@"; }\nscontrol() { :; }\n"""
    done = subprocess.run(["bash"], input=os.fsencode(stub + script), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    words = ["--label", python, "-m", "json.tool", *words]
    assert done.stdout.split(b"\0")[-len(words) - 1 : -1] == [os.fsencode(word) for word in words]


@examples(25)
@given(_word)
def test_a_batch_script_of_a_directory(tmp_path_factory, name):
    name = name.replace("/", "")
    assume(len(os.fsencode(name)) < 256)
    directory = tmp_path_factory.getbasetemp() / f"in {name}"
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.py").touch()
    os.chdir(directory)
    script = right_or_refused("slurm", "--python=python", "--dry_run", "--", f"./{name}.py")
    if script is None:
        assert "\n" in name
        return
    stub = """srun() { pwd; printf '%s\\0' "$@"; }\nscontrol() { :; }\n"""
    done = subprocess.run(["bash"], input=os.fsencode(stub + script), capture_output=True, check=True)
    assert done.stderr == b""
    assert done.stdout.startswith(os.fsencode(directory) + b"\n")
    assert done.stdout.split(b"\0")[-2] == os.fsencode(f"./{name}.py")


@pytest.mark.slow
@examples()
@given(st.lists(_word, max_size=3), _word, _word)
def test_what_ssh_runs(tmp_path_factory, words, python, value):
    os.chdir(tmp_path_factory.getbasetemp())
    directory = os.path.abspath(f"/{value}")
    out = right_or_refused(
        "ssh", "--ssh=true", "--hosts=a", f"--python={python}", f"--directory={directory}", f"--env=A={value}",
        "--dry_run", "--", "json.tool", *words,
    )  # fmt: skip
    if out is None:
        assert python == "--"
        return
    found = shlex.split(out)
    assert found[:5] == ["[worker", "0]", "a:", "cd", directory]
    assert f"A={value}" in found
    assert found[-len(words) - 3 :] == [python, "-m", "json.tool", *words]
    far = ssh_connection.command(["ssh"], "a", python, 10)[-1]
    assert shlex.split(far)[:3] == ["exec", python, "-c"]
    assert len(shlex.split(far)) == 5


@pytest.mark.slow
@examples()
@given(variables("NAME", "A B", "A;id", "A$(id)"))
def test_names_of_variables(name):
    out = right_or_refused("ssh", "--ssh=true", "--hosts=a", f"--env={name}=1", "--dry_run", "--", *PROGRAM)
    assert out is None or f"{name}=1" in shlex.split(out) or "=" in name


@examples()
@given(variables("me@a", "a", "$(id)@a", "-oProxyCommand=id", "a;id", "me@-a", "`id`@a"))
def test_hosts_that_ssh_is_told_of(text):
    for name, _ in parsed(UsageError, hostfile.parse_hosts, text) or ():
        assert not {*name} & {*"'\"`;&<>|(){}$ \\\n"} or "\\" in name.partition("@")[0]
        host = ssh_connection.bare(name).rpartition("@")[2]
        assert ssh_connection.command(["ssh"], name, "python", 10)[-2].rpartition("@")[2] == host
        assert not host.startswith("-")


@pytest.mark.slow
@examples(50)
@given(st.lists(_word, max_size=3), _word)
def test_what_kubernetes_runs(words, value):
    out = right_or_refused("k8s", "--image=x", f"--env=A={value}", "--dry_run", "--", "json.tool", *words)
    if out is None:
        assert any("\udc80" <= c <= "\udcff" for c in "".join([*words, value]))
        return
    _, jobset = yaml.safe_load_all(out)
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    known = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert expand(known["A"], {}) == value
    assert [expand(word, known) for word in container["command"]] == ["python", "-m", "json.tool", *words]


class Asking:
    """An ssh that has ended, and what it has said."""

    def __init__(self, said, returncode):
        self.said, self.returncode = said, returncode

    def communicate(self, order, timeout):
        return self.said, self.said


_ANSWER = (
    '{"problem": "", "versions": {"tensorflow": "2.21.0", "keras": "3.15.0"}, '
    '"gpus": {"variables": {"worker 0": {}}, "note": "", "per_worker": 0, "shared_by": 1}}'
)


@examples()
@given(
    texts(_ANSWER, '{"problem": "port 1 is in use", "versions": {}, "gpus": null}'),
    st.sampled_from([0, 1, 255]),
    st.booleans(),
)
def test_what_a_host_answers(text, status, marked):
    def ask():
        answer = ssh._answer_of(Asking(f"hello\nMARK {text}\n" if marked else text, status), "", "MARK", 0.0)
        if isinstance(answer, str):
            assert answer
            raise UsageError(answer)
        return answer

    parsed(UsageError, ask)
