"""The GPUs of a host are divided among its processes before any of them starts."""

import os
import re
import sys

import pytest

from tests.gpu_fakes import fake_nvidia_smi
from tf2dist.cluster.spec import Task
from tf2dist.errors import UsageError
from tf2dist.launch.cluster_layout import Layout, PlacedTask, place_tasks
from tf2dist.launch.gpu_sharing import agreed, share_gpus
from tf2dist.system import cuda_libraries

_SHOW = """
names = ("CUDA_VISIBLE_DEVICES", "TF2DIST_GPUS_SHARED_BY", "TF2DIST_GPU_MEMORY", "TF_FORCE_GPU_ALLOW_GROWTH")
print(*(os.environ.get(name, "-") for name in names))
"""


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        (0, ["--ps=1", "--workers=2"], dict.fromkeys(["chief 0", "worker 0", "worker 1", "ps 0"], "- - - -")),
        (
            1,
            ["--ps=1", "--workers=2", "--evaluator"],
            {
                "chief 0": "-1 - - -", "ps 0": "-1 - - -", "evaluator 0": "-1 - - -",
                "worker 0": "0 2 - true", "worker 1": "0 2 - true",
            },
        ),
        (
            4,
            ["--ps=1", "--workers=2"],
            {"chief 0": "-1 - - -", "ps 0": "-1 - - -", "worker 0": "0 - - true", "worker 1": "1 - - true"},
        ),
        (5, ["--workers=2"], {"worker 0": "0,1 - - true", "worker 1": "2,3 - - true"}),
        (2, ["--workers=3"], {"worker 0": "0 2 - true", "worker 1": "1 2 - true", "worker 2": "0 2 - true"}),
        (2, ["--workers=1", "--chief"], {"chief 0": "0 - - true", "worker 0": "1 - - true"}),
        (4, ["--workers=2", "--gpus_per_worker=1"], {"worker 0": "0 - - true", "worker 1": "1 - - true"}),
        (4, ["--workers=2", "--gpus_per_worker=0"], {"worker 0": "-1 - - -", "worker 1": "-1 - - -"}),
        (1, ["--workers=2", "--gpu_memory=8000"], {"worker 0": "0 2 8000 -", "worker 1": "0 2 8000 -"}),
    ],
)  # fmt: skip
def test_what_each_process_sees(tmp_path, monkeypatch, run, count, options, expected):
    fake_nvidia_smi(tmp_path, monkeypatch, count)
    status, out, _ = run(_SHOW, *options)
    assert status == 0
    assert dict(line[1:].split("] ", 1) for line in out.splitlines()) == expected


def test_a_users_own_choice_is_what_is_divided(tmp_path, monkeypatch, run):
    fake_nvidia_smi(tmp_path, monkeypatch, 4)
    status, out, _ = run(
        _SHOW, "--workers=2", env={"CUDA_VISIBLE_DEVICES": "3,1", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    )
    assert status == 0
    assert sorted(out.splitlines()) == ["[worker 0] 3 - - false", "[worker 1] 1 - - false"]
    _, out, _ = run(_SHOW, "--workers=2", env={"CUDA_VISIBLE_DEVICES": ""})
    assert sorted(out.splitlines()) == ["[worker 0]  - - -", "[worker 1]  - - -"]


@pytest.mark.slow
def test_what_the_user_is_told(tmp_path, monkeypatch, run):
    fake_nvidia_smi(tmp_path, monkeypatch, 3)
    assert (
        run("pass", "--workers=2")[2]
        == "launch: 2 workers use 2 GPUs of 3, and GPU 2 is left over; see --workers and --gpus_per_worker\n"
    )
    said = "launch: 4 workers share 3 GPUs (0, 1, 2); each takes "
    assert run("pass", "--workers=4")[2] == f"{said}the memory that it needs\n"
    assert run("pass", "--workers=4", "--gpu_memory=900")[2] == f"{said}up to 900 MiB\n"
    assert run("pass", "--workers=3")[2] == ""


@pytest.mark.parametrize(
    ("count", "options", "said"),
    [
        (1, ["--workers=2", "--gpus_per_worker=1"],
         "2 workers with 1 GPU each need 2, and there is 1 GPU (0); without --gpus_per_worker they share"),
        (0, ["--gpus_per_worker=2"],
         "1 worker with 2 GPUs each need 2, and there are 0 GPUs; python -m tf2dist.doctor says what mends it"),
        (2, ["--gpus_per_worker=0", "--gpu_memory=100"],
         "--gpu_memory=100 is for GPUs, and --gpus_per_worker=0 gives workers none"),
        (1, ["--gpus_per_worker=-1"], "--gpus_per_worker=-1 must be 0 or more"),
        (1, ["--gpu_memory=0"], "--gpu_memory=0 must be 1 or more, in MiB"),
        (0, ["--gpu_memory=100"], "--gpu_memory=100 is for GPUs, and there are none"),
        (1, ["--workers=3", "--gpu_memory=6000"],
         "--gpu_memory=6000 for 3 workers takes 18000 MiB of GPU 0, which has 16384"),
    ],
)  # fmt: skip
def test_what_is_asked_for_and_not_there(tmp_path, monkeypatch, run, count, options, said):
    """One line, and nothing is started."""
    fake_nvidia_smi(tmp_path, monkeypatch, count)
    status, out, err = run("(here / 'started').touch()", *options)
    assert (status, out) == (2, "")
    assert err.startswith(f"launch: local: {said}")
    assert err.count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_a_gpu_in_the_environment_that_is_not_there(tmp_path, monkeypatch, run):
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    status, _, err = run("pass", env={"CUDA_VISIBLE_DEVICES": "1"})
    assert (status, err) == (
        2, "launch: local: CUDA_VISIBLE_DEVICES=1 names GPU '1', which this machine lacks: it has 1, number 0\n",
    )  # fmt: skip


def test_a_gpu_in_the_environment_where_none_is(tmp_path, monkeypatch, run):
    """As in an image that is used everywhere: the job runs on the CPU, and a line says so."""
    fake_nvidia_smi(tmp_path, monkeypatch, 0)
    status, _, err = run("pass", env={"CUDA_VISIBLE_DEVICES": "0"})
    assert status == 0
    assert err.startswith("launch: no GPU is used: CUDA_VISIBLE_DEVICES=0 names one, and none is found;")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--workers=3", "--gpu_memory=400"],
            "--gpu_memory=400 for 3 workers takes 1200 MiB of GPU 0, which has 900 of ",
        ),
        (["--workers=2"], "2 workers must have 1000 MiB of GPU 0, which has 900 of 16384 free: `nvidia-smi` says who"),
        (["--workers=1"], None),
        (["--workers=2", "--gpus_per_worker=0"], None),
    ],
)
def test_memory_that_others_have_taken(tmp_path, monkeypatch, run, options, said):
    fake_nvidia_smi(tmp_path, monkeypatch, 1, free=900)
    status, out, err = run("print('runs')", *options)
    if said is None:
        assert (status, err) == (0, "")
    else:
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"launch: local: {said}")


@pytest.mark.parametrize("memory", ["64", "lots"])
def test_a_limit_of_memory_in_the_environment(tmp_path, monkeypatch, memory):
    fake_nvidia_smi(tmp_path, monkeypatch, 1, mib=100)
    layout = place_tasks(ps=1, workers=2)
    said = "=64 for 2 workers takes 128 MiB of GPU 0, which has 100" if memory == "64" else " is 'lots'"
    with pytest.raises(UsageError, match=f"^TF2DIST_GPU_MEMORY{said}"):
        share_gpus(layout, {"TF2DIST_GPU_MEMORY": memory})


@pytest.mark.parametrize("options", [[], ["--gpus_per_worker=1"]])
def test_libraries_of_the_wrong_version(tmp_path, monkeypatch, run, options):
    """Training goes on on the CPU, unless GPUs were asked for."""
    fake_nvidia_smi(tmp_path, monkeypatch, 1, cudnn="8.9.7")
    status, out, err = run("print('ran')", *options)
    why = "cuDNN 9.3 is wanted, and 8.9.7 is found; python -m tf2dist.doctor says what mends it\n"
    if options:
        assert (status, out) == (2, "")
        assert err == f"launch: local: --gpus_per_worker=1: TensorFlow cannot use GPUs here: {why}"
    else:
        assert (status, out, err) == (0, "[worker 0] ran\n", f"launch: no GPU is used: {why}")


@pytest.mark.parametrize(
    ("missing", "said"), [(["cublas"], "cuBLAS is"), (["cufft", "cusparse"], "cuFFT and cuSPARSE are")]
)
def test_a_library_that_is_missing(tmp_path, monkeypatch, missing, said):
    """TensorFlow loads all of them before it uses any GPU; without one it computes on the CPU."""
    fake_nvidia_smi(tmp_path, monkeypatch, 1, without=missing)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "wheels"), *sys.path])
    assert share_gpus(place_tasks(workers=1), {}).note.startswith(f"no GPU is used: {said} not found; python -m")
    with pytest.raises(UsageError, match=f"^--gpus_per_worker=1: TensorFlow cannot use GPUs here: {said} not found;"):
        share_gpus(place_tasks(workers=1), {}, each=1)


@pytest.mark.parametrize(
    ("nccl", "count", "layout", "said"),
    [
        ("2.18.3", 2, {"workers": 2}, "NCCL 2.27 is wanted, and 2.18.3 is found: GPUs may fail to add up gradients;"),
        ("1.0", 2, {"workers": 2}, "NCCL 2.27 is wanted, and 1.0 is found: GPUs will fail to add up gradients;"),
        ("", 2, {"workers": 1}, "NCCL 2.27 is not found: GPUs will fail to add up gradients;"),
        ("", 1, {"workers": 1}, ""),
        ("", 2, {"ps": 1, "workers": 2}, ""),
        ("", 1, {"workers": 2}, "2 workers share 1 GPU (0); each takes the memory that it needs"),
    ],
)
def test_nccl_where_it_adds_up_gradients(tmp_path, monkeypatch, nccl, count, layout, said):
    fake_nvidia_smi(tmp_path, monkeypatch, count, nccl=nccl or "0", without=() if nccl else ["nccl"])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "wheels"), *sys.path])
    note = share_gpus(place_tasks(**layout), {}).note
    assert note.startswith(said) if said else not note


def test_the_only_worker_of_a_host_among_others(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 1, without=["nccl"])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "wheels"), *sys.path])
    placed = tuple(PlacedTask(Task("worker", index), f"host{index}", None) for index in range(2))
    assert share_gpus(Layout(placed), {}, host="host1").note.startswith("NCCL 2.27 is not found: GPUs will fail")


def test_workers_that_would_each_take_all_of_a_card(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "wheels"), *sys.path])
    environ = {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    with pytest.raises(UsageError, match=r"^TF_FORCE_GPU_ALLOW_GROWTH=false has each of 2 workers take all memory"):
        share_gpus(place_tasks(ps=1, workers=2), environ)
    assert share_gpus(place_tasks(ps=1, workers=2), environ, memory_mib=4000).shared_by == 2
    assert share_gpus(place_tasks(ps=1, workers=1), environ).shared_by == 1


@pytest.mark.parametrize("options", [[], ["--gpus_per_worker=1"]])
def test_a_driver_that_is_too_old(tmp_path, monkeypatch, run, options):
    fake_nvidia_smi(tmp_path, monkeypatch, 1, driver="470.82.01")
    status, out, err = run("print('ran')", *options)
    why = (
        "the driver is 470.82.01, and CUDA 12.5 needs 525.60.13 or later; python -m tf2dist.doctor says what mends it\n"
    )
    if options:
        assert (status, out) == (2, "")
        assert err == f"launch: local: --gpus_per_worker=1: TensorFlow cannot use GPUs here: {why}"
    else:
        assert (status, out, err) == (0, "[worker 0] ran\n", f"launch: no GPU is used: {why}")


def test_a_driver_that_fails(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML: Unknown Error'\nexit 255\n")
    why = r"\(nvidia-smi fails: Failed to initialize NVML: Unknown Error\); python -m tf2dist.doctor"
    with pytest.raises(UsageError, match=f"need 2, and there are 0 GPUs {why}"):
        share_gpus(place_tasks(workers=2), {}, each=1)
    with pytest.raises(UsageError, match=r"is for GPUs, and there are none .*Unknown Error"):
        share_gpus(place_tasks(workers=2), {}, memory_mib=100)
    said = share_gpus(place_tasks(workers=2), {}).note
    assert said.startswith(
        "no GPU is used: nvidia-smi fails: Failed to initialize NVML: Unknown Error; python -m tf2dist"
    )
    assert share_gpus(place_tasks(workers=2), {"CUDA_VISIBLE_DEVICES": "-1"}).note == ""
    assert re.search(f"none is found {why}", share_gpus(place_tasks(workers=2), {"CUDA_VISIBLE_DEVICES": "0"}).note)


def test_parts_of_a_gpu(tmp_path, monkeypatch):
    """CUDA shows a process one of them, however many are named."""
    fake_nvidia_smi(tmp_path, monkeypatch, 1, parts=2)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "wheels"), *sys.path])
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-00,MIG-01"}
    shared = share_gpus(place_tasks(workers=1), environ)
    assert shared.variables["worker 0"]["CUDA_VISIBLE_DEVICES"] == "MIG-00"
    assert "GPU MIG-01 is left over" in shared.note
    two = share_gpus(place_tasks(workers=2), environ).variables
    assert [two[f"worker {n}"]["CUDA_VISIBLE_DEVICES"] for n in range(2)] == ["MIG-00", "MIG-01"]
    with pytest.raises(UsageError, match="--gpus_per_worker=2: CUDA shows a process one part of a GPU"):
        share_gpus(place_tasks(workers=1), environ, each=2)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--workers=1"], ["--ps=1", "--workers=1"]])
def test_a_gpu_that_was_promised_and_that_tensorflow_does_not_use(tmp_path, monkeypatch, run, layout):
    """Here there is none; where one is, CUDA may fail for many reasons."""
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    name = "ps" if "--ps=1" in layout else "multiworker"
    code = f"import tf2dist; tf2dist.join('{name}'); print('trains')"
    grace = {"TF2DIST_WORKERS_GRACE": "1"}  # of a coordinator that has lost all workers
    status, out, err = run(code, *layout, "--gpus_per_worker=1", "--max_restarts=0", env=grace)
    assert status == 2, err
    assert "trains" not in out
    assert "Traceback" not in out + err or name == "multiworker"
    assert "--gpus_per_worker=1, and TensorFlow uses 0 of the GPUs that this process was given" in out + err
    assert "(CUDA_VISIBLE_DEVICES=0); python -m tf2dist.doctor says why" in out + err


def test_gpus_that_the_environment_hides(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 2)
    with pytest.raises(UsageError, match=r"there are 0 GPUs \(CUDA_VISIBLE_DEVICES=-1\); python -m tf2dist.doctor"):
        share_gpus(place_tasks(workers=2), {"CUDA_VISIBLE_DEVICES": "-1"}, each=1)


def test_a_wrong_limit_in_the_environment_of_a_machine_without_gpus(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 0)
    with pytest.raises(UsageError, match=r"^TF2DIST_GPU_MEMORY is 'lots'"):
        share_gpus(place_tasks(workers=2), {"TF2DIST_GPU_MEMORY": "lots"})


@pytest.mark.parametrize("options", [[], ["--gpus_per_worker=1"]])
def test_an_older_library_of_the_right_version(tmp_path, monkeypatch, run, options):
    """TensorFlow loads it and uses the GPU, and ends at the first convolution."""
    fake_nvidia_smi(tmp_path, monkeypatch, 1, cudnn="9.1.0")
    status, out, err = run("print(os.environ['CUDA_VISIBLE_DEVICES'])", *options)
    why = "cuDNN 9.3 is wanted, and 9.1.0 is found: convolutions will fail, and so may XLA"
    assert (status, out) == (0, "[worker 0] 0\n")
    assert err == f"launch: {why}; python -m tf2dist.doctor says what mends it\n"


def test_a_dry_run_shows_it(tmp_path, monkeypatch, run):
    fake_nvidia_smi(tmp_path, monkeypatch, 2)
    status, out, _ = run("pass", "--ps=1", "--workers=2", "--dry_run")
    assert status == 0
    seen = [word for line in out.splitlines() for word in line.split() if word.startswith("CUDA_VISIBLE_DEVICES")]
    assert seen == [f"CUDA_VISIBLE_DEVICES={value}" for value in ("-1", "0", "1", "-1")]
    said = "launch: 3 workers share 2 GPUs (0, 1); each takes the memory that it needs\n"
    assert run("pass", "--workers=3", "--dry_run")[2] == said


@pytest.mark.slow
def test_the_fork_server_has_touched_no_cuda(tmp_path, monkeypatch, run):
    """TensorFlow, Keras and tf2dist are imported before the fork; CUDA's driver is loaded when devices are listed."""
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    code = """
    from tensorflow.python.eager import context
    loaded = [line.split()[-1] for line in open("/proc/self/maps") if ".so" in line]
    import tensorflow as tf
    print(context.context()._initialized, context.context()._physical_devices,
          sorted({os.path.basename(path) for path in loaded if "libcuda.so" in path or "libnvidia" in path}))
    """
    status, out, err = run(code, "--workers=1", preload=None)
    assert (status, out) == (0, "[worker 0] False None []\n"), err


def test_nothing_is_forked_from_what_has_touched_cuda(tmp_path, monkeypatch, run):
    (tmp_path / "eager.py").write_text("from tf2dist.system import gpus\ngpus.driver_is_open = lambda: True\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    status, out, err = run("print('forked')", preload="eager")
    assert (status, out) == (1, "")
    assert "one of eager uses CUDA when it is imported, which no fork survives" in err


def test_a_host_of_servers_only(tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path, monkeypatch, 1)
    layout = place_tasks(ps=2, workers=1)
    with pytest.raises(UsageError, match="names GPU"):
        share_gpus(layout, {"CUDA_VISIBLE_DEVICES": "7"})


TWO_HOSTS = [("b", 2), ("c", 1)]


def on_two_hosts(layout, monkeypatch, tmp_path, counts, **options):
    found = {}
    monkeypatch.setattr(cuda_libraries, "why_unusable", lambda: "")
    for host, count in zip(("b", "c"), counts, strict=True):
        fake_nvidia_smi(tmp_path, monkeypatch, count)
        found[host] = share_gpus(layout, {}, host=host, **options)
    return found


def test_each_host_divides_its_own(tmp_path, monkeypatch):
    """The chief under parameter servers, on the first host, sees none; workers have one each."""
    layout = place_tasks(ps=1, workers=3, hosts=TWO_HOSTS)
    found = agreed(on_two_hosts(layout, monkeypatch, tmp_path, (4, 1)))
    seen = {task: variables["CUDA_VISIBLE_DEVICES"] for task, variables in found.items()}
    assert seen == {"chief 0": "-1", "ps 0": "-1", "worker 0": "0", "worker 1": "1", "worker 2": "0"}
    assert not any("TF2DIST_GPUS_SHARED_BY" in variables for variables in found.values())


def test_all_know_that_two_on_one_host_share(tmp_path, monkeypatch):
    """Or some would add up gradients by NCCL, and the others by TensorFlow's ring, and all would wait for ever."""
    layout = place_tasks(workers=3, hosts=TWO_HOSTS)
    found = agreed(on_two_hosts(layout, monkeypatch, tmp_path, (1, 1)))
    assert [found[f"worker {n}"]["TF2DIST_GPUS_SHARED_BY"] for n in range(3)] == ["2", "2", "2"]


@pytest.mark.parametrize("counts", [(2, 2), (2, 0)])
def test_workers_with_fewer_than_others(tmp_path, monkeypatch, counts):
    layout = place_tasks(workers=3, hosts=TWO_HOSTS)
    more, least, number = ("c", "b", 1) if counts == (2, 2) else ("b", "c", 0)
    with pytest.raises(UsageError, match=f"a worker on {more} has .* and one on {least} has {number}, and all must"):
        agreed(on_two_hosts(layout, monkeypatch, tmp_path, counts))
    agreed(on_two_hosts(layout, monkeypatch, tmp_path, counts, each=number))


def test_a_host_of_servers_has_no_say(tmp_path, monkeypatch):
    layout = place_tasks(ps=2, workers=2, hosts=[*TWO_HOSTS])
    found = on_two_hosts(layout, monkeypatch, tmp_path, (2, 0), memory_mib=100)
    assert found["c"].per_worker is None
    assert agreed(found)["ps 1"] == {}
