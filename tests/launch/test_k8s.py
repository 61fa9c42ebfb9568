"""The manifests, against Kubernetes' own schemas, and those of JobSet and TFJob, written from their documentation."""

import argparse
import json
import pathlib
import re
import shlex

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.launch.kubelet import expand, pods_of
from tf2dist.cluster import environments
from tf2dist.errors import UsageError
from tf2dist.launch.backends import k8s
from tf2dist.launch.command_line import main

SCHEMAS = pathlib.Path(__file__).parent / "schemas"
VERSION = "1.29"


def options(*arguments):
    parser = argparse.ArgumentParser()
    k8s.BACKEND.add_arguments(parser)
    return parser.parse_args(["--image=registry/job:1", *arguments])


def manifests(*arguments, program=("trainers.mnist", "--epochs=2")):
    return k8s.manifests(options(*arguments), program)


def pods(found):
    """The pod specifications of a manifest, each with the labels of its pods."""
    if found["kind"] == "Job":
        return [found["spec"]["template"]]
    if found["kind"] == "JobSet":
        return [job["template"]["spec"]["template"] for job in found["spec"]["replicatedJobs"]]
    if found["kind"] == "TFJob":
        return [replica["template"] for replica in found["spec"]["tfReplicaSpecs"].values()]
    return []


def check(found):
    if found["apiVersion"] in ("v1", "batch/v1", "networking.k8s.io/v1"):
        kubernetes_validate.validate(found, VERSION, strict=True)
    else:
        schema = json.loads((SCHEMAS / f"{found['kind'].lower()}.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(found)
    for pod in pods(found):  # the pods inside of it
        template = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod["spec"]}
        kubernetes_validate.validate(template, VERSION, strict=True)


LAYOUTS = [
    ["--workers=2"],
    ["--ps=2", "--workers=3", "--evaluator"],
    ["--ps=1", "--workers=1", "--no-chief", "--gpus=2", "--claim=checkpoints", "--max_restarts=3", "--port=7000"],
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", k8s.KINDS)
def test_manifests_are_valid(kind, layout):
    for found in manifests(f"--kind={kind}", *layout):
        check(found)


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_the_schemas_would_find_a_mistake(kind):
    found = next(m for m in manifests(f"--kind={kind}") if pods(m))
    found["spec"]["surprise"] = 1
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        check(found)


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_what_is_printed_is_what_was_made(kind, capsys):
    arguments = [f"--kind={kind}", "--ps=1", "--workers=2", "--claim=yes"]
    program = ["trainers.mnist", "--name=a: b", "no", "1.5", "", "ü", '"', "1e3", "12:30", "0o7", "=", "<<", "~", "\n"]
    program += [
        "😀",
        "\x7f",
        "\x85",
        "\u2028",
        "\ufeff",
        "- a",
        "# a",
        "a #",
        "{}",
        "*a",
        "&a",
        "!a",
        "%a",
        "'a",
        "NaN",
    ]
    assert main(["k8s", "--image=registry/job:1", *arguments, "--", *program]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == manifests(*arguments, program=program)


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_every_pod_finds_its_place(kind):
    given = "--start_timeout=300", "--stall_timeout=0.5"
    found = list(pods_of(manifests(f"--kind={kind}", "--ps=1", "--workers=2", "--evaluator", *given)))
    places = [environments.from_environment(pod.env()) for pod in found]
    assert [str(place.task) for place in places] == ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]
    assert all(place.spec == places[0].spec for place in places)
    for pod, place in zip(found[:-1], places, strict=False):
        assert f"{pod.names[0]}:2222" == place.address()
        assert pod.spec["containers"][0]["ports"][0]["containerPort"] == 2222
    assert all(pod.env()["TF2DIST_START_TIMEOUT"] == "300" for pod in found)
    assert all(pod.env()["TF2DIST_STALL_TIMEOUT"] == "0.5" for pod in found)


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_data_workers_have_names_ports_and_restarts(kind):
    made = manifests(f"--kind={kind}", "--workers=1", "--data_workers=2", "--port=7000", "--gpus=1")
    for each in made:
        check(each)
    pods = list(pods_of(made))
    places = [environments.from_environment(pod.env()) for pod in pods]
    assert [str(place.task) for place in places] == ["worker 0", "data_worker 0", "data_worker 1"]
    for pod, place in zip(pods, places, strict=True):
        assert f"{pod.names[0]}:7000" == place.address()
        assert "_" not in place.address()
        assert pod.env()["TF2DIST_DISPATCHER_PORT"] == "7001"
        limits = pod.spec["containers"][0]["resources"]["limits"]
        assert ("nvidia.com/gpu" in limits) == (place.task.job == "worker")
    assert [port["port"] for port in made[0]["spec"]["ingress"][0]["ports"]] == [7000, 7001]
    jobs = made[1]["spec"]["replicatedJobs"] if kind == "jobset" else []
    found = [job["template"]["spec"]["backoffLimit"] for job in jobs] or [
        each["spec"]["backoffLimit"] for each in made[2:]
    ]
    assert found == [0, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind=tfjob", "--workers=1", "--data_workers=1"], "a TFJob knows no data workers"),
        (["--workers=1", "--data_workers=1", "--port=65535"], "leaves no port for the dispatcher"),
        (["--workers=2", "--data_workers=1"], "found 2 peers"),
    ],
)
def test_data_workers_that_cannot_be(arguments, said):
    with pytest.raises(UsageError, match=said):
        manifests(*arguments)


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_names_fit_into_what_kubernetes_allows(kind):
    longest = ["--name=" + "n" * 40, "--namespace=" + "9" * 63, "--ps=2", "--workers=1000", "--evaluator"]
    longest += [] if kind == "tfjob" else ["--data_workers=1000"]
    for pod in pods_of(manifests(f"--kind={kind}", *longest)):
        assert len(f"{pod.name}-abcde") <= 63  # the name of a pod, whose end is random
        assert max(map(len, pod.labels.values())) <= 63
    environments.from_environment(pod.env())


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_words_are_what_was_typed_after_kubernetes_has_put_variables_in(kind):
    words = ["--a=$(TASK_INDEX)", "$$", "$(PYTHONUNBUFFERED)", "$5", "$", "$$(X)", "$(", "${HOME}"]
    found = manifests(f"--kind={kind}", "--env=A=$(PYTHONUNBUFFERED)$$", program=["x", *words])
    for pod in pods_of(found):
        env = pod.env()
        assert [expand(word, env) for word in pod.spec["containers"][0]["command"]] == ["python", "-m", "x", *words]
        assert env["A"] == "$(PYTHONUNBUFFERED)$$"


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_only_the_jobs_own_pods_reach_it(kind):
    policy, *jobs = manifests(f"--kind={kind}", "--name=mine", "--port=7000", "--ps=1", "--evaluator")
    assert policy["kind"] == "NetworkPolicy"  # the first: it is there before any pod is
    selector = {"podSelector": {"matchLabels": policy["spec"]["podSelector"]["matchLabels"]}}
    [rule] = policy["spec"]["ingress"]
    assert rule["from"] == [selector]
    assert [port["port"] for port in rule["ports"]] == [7000]

    def selected(found):
        return [selector["podSelector"]["matchLabels"].items() <= pod.labels.items() for pod in pods_of(found)]

    assert selected(jobs) == [True] * 4
    _, *others = manifests(f"--kind={kind}", "--name=other")
    assert not any(selected(others))


def test_a_claim_can_be_written_by_the_user_of_the_image():
    for kind in k8s.KINDS:
        for pod in pods_of(manifests(f"--kind={kind}", "--claim=c")):
            assert pod.spec["securityContext"] == {"fsGroup": 1000}
    dockerfile = (pathlib.Path(__file__).parents[2] / "Dockerfile").read_text()
    assert "useradd --uid 1000" in dockerfile
    assert "USER 1000" in dockerfile


def test_the_commands_in_the_documentation_print_manifests(capsys):
    root = pathlib.Path(__file__).parents[2]
    text = (root / "docs/multihost.md").read_text() + (root / "README.md").read_text()
    commands = re.findall(r"^python -m launch k8s ((?:.*\\\n)*.*?) \| kubectl apply -f -$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert main(["k8s", *shlex.split(command.replace("\\\n", " "))]) == 0
        for found in yaml.safe_load_all(capsys.readouterr().out):
            check(found)


def test_tasks_wait_until_nodes_and_images_are_there():
    [pod] = pods_of(manifests("--workers=1"))
    assert pod.env()["TF2DIST_START_TIMEOUT"] == "900"


def test_an_evaluator_has_time_for_the_last_checkpoint():
    """TFJob's operator ends what still runs when the chief has ended."""
    *_, evaluator = pods_of(manifests("--kind=tfjob", "--ps=1", "--evaluator"))
    assert evaluator.spec["terminationGracePeriodSeconds"] == 600


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_tasks_have_time_to_save(kind):
    for pod in pods_of(manifests(f"--kind={kind}", "--ps=1", "--workers=2", "--grace=90")):
        assert pod.spec["terminationGracePeriodSeconds"] == 90
        assert pod.env()["TF2DIST_PREEMPTIBLE"] == "1"


def test_a_pod_that_was_preempted_is_no_failure():
    """In a JobSet all start again without a count; a Job makes another pod, if it restarts no containers."""
    [_, jobset] = manifests("--ps=1", "--workers=1")
    [rule] = jobset["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    jobs = [job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]]
    for action, specs in (
        ("FailJob", jobs),
        ("Ignore", [found["spec"] for found in manifests("--kind=job", "--workers=2") if found["kind"] == "Job"]),
    ):
        for spec in specs:
            assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == [action, action]
            assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [75]
            assert spec["template"]["spec"]["restartPolicy"] == "Never"
    [job] = [found for found in manifests("--kind=job", "--max_restarts=2") if found["kind"] == "Job"]
    assert "podFailurePolicy" not in job["spec"]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    ("layout", "limits"),
    [
        (("--ps=1", "--workers=2"), {"chief": 0, "worker": 3, "ps": 3}),
        (("--ps=1", "--workers=2", "--max_restarts=0"), {"chief": 0, "worker": 0, "ps": 0}),
        (("--ps=1", "--workers=2", "--max_restarts=5"), {"chief": 0, "worker": 5, "ps": 5}),
        (("--ps=1", "--workers=2", "--no-chief"), {"worker": 0, "ps": 3}),  # worker 0 leads
        (("--workers=2", "--max_restarts=5"), {"worker": 0}),
    ],
)
def test_what_a_coordinator_leads_is_started_again_in_its_place(layout, limits):
    [_, jobset] = manifests(*layout)
    jobs = jobset["spec"]["replicatedJobs"]
    assert {job["name"]: job["template"]["spec"]["backoffLimit"] for job in jobs} == limits
    if "--max_restarts=5" in layout:
        return  # all tasks of the other kinds are started again
    jobs = [found for found in manifests("--kind=job", *layout) if found["kind"] == "Job"]
    found = {job["metadata"]["name"].partition("-")[2]: job["spec"]["backoffLimit"] for job in jobs}
    assert found == limits
    [_, tfjob] = manifests("--kind=tfjob", *layout)
    replicas = tfjob["spec"]["tfReplicaSpecs"]
    found = {name.lower() for name, replica in replicas.items() if replica["restartPolicy"] == "OnFailure"}
    assert found == {name for name, limit in limits.items() if limit}
    limit = max(limits.values())
    assert tfjob["spec"]["runPolicy"]["backoffLimit"] == limit + (limit > 0)  # at the last one it gives up


def test_a_task_has_as_many_threads_as_cores():
    [pod] = pods_of(manifests("--workers=1", "--cpu=2500m", "--env=OMP_NUM_THREADS=1"))
    assert (pod.env()["TF_NUM_INTRAOP_THREADS"], pod.env()["OMP_NUM_THREADS"]) == ("3", "1")


def test_gpus_are_for_those_that_compute():
    [_, jobset] = manifests("--ps=1", "--workers=1", "--gpus=2")
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods(jobset)]
    assert [limit.get("nvidia.com/gpu") for limit in limits] == [None, 2, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name=Mine"], "--name=Mine is no name"),
        (["--name=1"], "--name=1 is no name"),
        (["--name=a-"], "--name=a- is no name"),
        (["--name=" + "n" * 41], "up to 40"),
        (["--namespace=a_b"], "--namespace=a_b"),
        (["--namespace=" + "n" * 64], "up to 63"),
        (["--claim=My Claim"], "--claim=My Claim"),
        (["--claim=a..b"], "--claim=a..b"),
        (["--image="], "--image= is no image"),
        (["--image=a b"], "--image=a b is no image"),
        (["--env=A"], "--env=A is no variable"),
        (["--env==1"], "--env==1 is no variable"),
        (["--env=TF_CONFIG={}"], "--env=TF_CONFIG={} is no variable"),
        (["--cpu=two"], "--cpu=two is no number of cores"),
        (["--cpu=2Gi"], "--cpu=2Gi is no number of cores"),
        (["--cpu=0"], "--cpu=0 is no number of cores"),
        (["--memory=2GB"], "--memory=2GB is no amount of memory"),
        (["--memory=512m"], "--memory=512m is no amount of memory"),
        (["--memory=4"], "--memory=4 is 4 bytes"),
        (["--memory=500k"], "--memory=500k is 500000 bytes"),
        (["--gpus=-1"], "--gpus=-1"),
        (["--max_restarts=-1"], "--max_restarts=-1"),
        (["--grace=-1"], "--grace=-1"),
        (["--hosts=a"], "Kubernetes chooses"),
        (["--hosts=localhost"], "Kubernetes chooses"),
        (["--cluster=any"], "Kubernetes chooses"),
        (["--workers=0"], "workers is 0"),
    ],
)
def test_what_cannot_be(arguments, said):
    with pytest.raises(UsageError) as error:
        manifests(*arguments)
    assert said in str(error.value)


def test_a_program_that_is_no_text():
    with pytest.raises(UsageError, match="UTF-8"):
        manifests(program=["x", "\udcff"])


@pytest.mark.parametrize("namespace", ["2024-team", "n" * 63])
def test_a_namespace_may_begin_with_a_digit_and_be_long(namespace):
    assert manifests(f"--namespace={namespace}")[0]["metadata"]["namespace"] == namespace
