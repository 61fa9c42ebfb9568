"""The manifests, against Kubernetes' own schemas, and those of JobSet and TFJob, written from their documentation."""

import argparse
import json
import pathlib

import jsonschema
import kubernetes_validate
import pytest
import yaml

from launch import UsageError, k8s
from launch.__main__ import main
from tf2dist import environments

SCHEMAS = pathlib.Path(__file__).parent / "schemas"
VERSION = "1.29"


def options(*arguments):
    parser = argparse.ArgumentParser()
    k8s.add_arguments(parser)
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
    program = ["trainers.mnist", "--name=a: b", "no", "1.5", "", "ü", '"']
    assert main(["k8s", "--image=registry/job:1", *arguments, "--", *program]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == manifests(*arguments, program=program)


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_every_pod_finds_its_place(kind):
    places = []
    for found in manifests(f"--kind={kind}", "--ps=1", "--workers=2", "--evaluator", "--start_timeout=300"):
        jobs = [job["template"]["spec"] for job in found["spec"].get("replicatedJobs", [])]
        for job in jobs or [found["spec"]] * (found["kind"] == "Job"):
            [container] = job["template"]["spec"]["containers"]
            env = {entry["name"]: entry.get("value") for entry in container["env"]}
            assert env["TF2DIST_START_TIMEOUT"] == "300"
            assert list(env).index("TASK_INDEX") < list(env).index("TF_CONFIG")  # or it would not be put in
            assert container["ports"][0]["containerPort"] == 2222
            for index in range(job["completions"]):
                text = env["TF_CONFIG"].replace("$(TASK_INDEX)", str(index))
                places.append(environments.from_environment({"TF_CONFIG": text}))
    assert [str(place.task) for place in places] == ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]
    middle = "-0" if kind == "jobset" else ""
    assert places[0].spec["worker"] == [f"tf2dist-worker{middle}-{i}.tf2dist.default.svc:2222" for i in range(2)]
    assert all(place.spec == places[0].spec for place in places)


@pytest.mark.parametrize("kind", k8s.KINDS)
def test_only_the_jobs_own_pods_reach_it(kind):
    *jobs, policy = manifests(f"--kind={kind}", "--name=mine", "--port=7000")
    assert policy["kind"] == "NetworkPolicy"
    labels = policy["spec"]["podSelector"]["matchLabels"]
    assert labels == {k8s._LABEL[kind]: "mine"}
    [rule] = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert [port["port"] for port in rule["ports"]] == [7000]
    if kind == "job":  # the controllers of the others put their label on
        assert all(pod["metadata"]["labels"] == labels for job in jobs for pod in pods(job))


def test_gpus_are_for_those_that_compute():
    [jobset, _] = manifests("--ps=1", "--workers=1", "--gpus=2")
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods(jobset)]
    assert [limit.get("nvidia.com/gpu") for limit in limits] == [None, 2, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name=Mine"], "--name=Mine is no name"),
        (["--name=1"], "--name=1 is no name"),
        (["--namespace=a_b"], "--namespace=a_b"),
        (["--cpu=two"], "--cpu=two is no quantity"),
        (["--memory=2GB"], "--memory=2GB is no quantity"),
        (["--gpus=-1"], "--gpus=-1"),
        (["--max_restarts=-1"], "--max_restarts=-1"),
        (["--hosts=a"], "Kubernetes chooses"),
        (["--workers=0"], "workers is 0"),
    ],
)
def test_what_cannot_be(arguments, said):
    with pytest.raises(UsageError) as error:
        manifests(*arguments)
    assert said in str(error.value)
