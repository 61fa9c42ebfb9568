"""A stand-in for Kubernetes on this machine: makes pods of manifests and runs them, as far as ours need it.

It follows what is documented of Jobs (kubernetes.io/docs/concepts/workloads/controllers/job), of variables in env and
command (Container.env and Container.command in the API's reference), of names (dns-pod-service), of network policies,
of JobSet (jobset.sigs.k8s.io/docs/concepts) and of TFJob (kubeflow/training-operator, controller.v1/tensorflow).
A pod has a network with an address of its own, and its process is number 1, not root, and sees only the environment
that the manifest gives it. Its image is this machine's own files, with the project at /job as the Dockerfile has it.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from tests.launch.hosts import DEADLINE, ROOT, sh
from tf2dist.system import linux

USER = 1000  # of the image
IMAGE = """
set -e
into=$1 claim=$2 group=$3; shift 3
mount -t tmpfs image $into && cd $into && mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=$into/upper,workdir=$into/work pod root
cd root && cp /etc/hosts etc/hosts && mount -t proc proc proc && mount --rbind /dev dev
while [ "$1" != -- ]; do  # where Python is: everybody may look there in an image
  path=$1; while [ $path != / ]; do mkdir -p .$path && chmod a+x .$path && path=$(dirname $path); done
  mount --bind $1 .$1; shift
done
mkdir -p job data home/job && chown $2 home/job && mount --bind $PROJECT job && shift
[ -z "$claim" ] || mount --bind $claim data
user=$1; shift
exec chroot --userspec=$user:$user --groups=$group . env -i -C /job HOME=/home/job "$@"
"""


def possible():
    """Why pods cannot run here; empty if they can."""
    if not shutil.which("nft"):
        return "tests/install.sh has not installed nft, for network policies"
    layers = "mount -t tmpfs x /mnt && cd /mnt && mkdir upper work root && mount -t overlay"
    probe = f"{layers} -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work x root && mount -t proc x root/proc"
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", probe], capture_output=True, text=True)
    return f"pods cannot have their own files here: {done.stderr.strip()}" if done.returncode else ""


def expand(text, env):
    """Puts in variables as Kubernetes does: $(NAME) if it is known, and $$ is a dollar."""
    return re.sub(r"\$(\$|\((.*?)\))", lambda m: "$" if m[1] == "$" else env.get(m[2], m[0]), text)


@dataclasses.dataclass
class Pod:
    """What a controller makes of a template."""

    job: str
    index: int
    names: list[str]
    labels: dict[str, str]
    spec: dict
    annotations: dict[str, str] = dataclasses.field(default_factory=dict)
    extra: dict[str, str] = dataclasses.field(default_factory=dict)
    host: str = ""
    statuses: list[int] = dataclasses.field(default_factory=list)
    process: subprocess.Popen | None = None

    @property
    def name(self):
        return f"{self.job}-{self.index}"

    def env(self):
        env = {}
        for entry in self.spec["containers"][0]["env"]:
            if field := entry.get("valueFrom"):
                [key] = re.fullmatch(r"metadata\.annotations\['(.*)'\]", field["fieldRef"]["fieldPath"]).groups()
                env[entry["name"]] = self.annotations[key]
            else:
                env[entry["name"]] = expand(entry["value"], env)
        return env | self.extra


def indexed(job, spec, labels, service, namespace):
    """The pods of an Indexed Job; `service` gives them names."""
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    for index in range(spec["completions"]):
        names = [f"{job}-{index}.{service}.{namespace}.svc{domain}" for domain in ("", ".cluster.local")]
        template = spec["template"]
        labels = {**template["metadata"].get("labels", {}), **labels, "batch.kubernetes.io/job-name": job}
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        yield Pod(job, index, names, labels, template["spec"], annotations)


def pods_of(documents):
    """The pods that the controllers make of manifests."""
    for found in documents:
        spec, name, namespace = found["spec"], found["metadata"]["name"], found["metadata"]["namespace"]
        if found["kind"] == "Job":
            service = spec["template"]["spec"]["subdomain"]
            [service_spec] = [
                d["spec"] for d in documents if (d["kind"], d["metadata"]["name"]) == ("Service", service)
            ]
            assert service_spec["clusterIP"] == "None"
            for pod in indexed(name, spec, {}, service, namespace):
                assert service_spec["selector"].items() <= pod.labels.items()  # else it would have no name
                yield pod
        elif found["kind"] == "JobSet":
            for job in spec["replicatedJobs"]:
                assert (spec["network"]["enableDNSHostnames"], job["replicas"]) == (True, 1)
                keys = {"jobset-name": name, "replicatedjob-name": job["name"], "job-index": "0"}
                labels = {f"jobset.sigs.k8s.io/{key}": value for key, value in keys.items()}
                service = spec["network"]["subdomain"]
                yield from indexed(f"{name}-{job['name']}-0", job["template"]["spec"], labels, service, namespace)
        elif found["kind"] == "TFJob":
            replicas = {kind.lower(): replica for kind, replica in spec["tfReplicaSpecs"].items()}
            cluster = {
                kind: [f"{name}-{kind}-{i}.{namespace}.svc:{_tfjob_port(r)}" for i in range(r["replicas"])]
                for kind, r in replicas.items()
                if kind != "evaluator"
            }
            for kind, replica in replicas.items():
                for index in range(replica["replicas"]):
                    task = {"type": kind, "index": index}
                    config = {"cluster": cluster, "task": task, "environment": "cloud"}
                    keys = {"job-name": name, "replica-type": kind, "replica-index": str(index)}
                    labels = {f"training.kubeflow.org/{key}": value for key, value in keys.items()}
                    pod_spec = {**replica["template"]["spec"], "restartPolicy": replica["restartPolicy"]}
                    names = [f"{name}-{kind}-{index}.{namespace}.svc"]
                    yield Pod(f"{name}-{kind}", index, names, labels, pod_spec, extra={"TF_CONFIG": json.dumps(config)})


def _jobs_of(documents):
    """The Jobs, by themselves and in a JobSet, with the names that their pods have."""
    for found in documents:
        if found["kind"] == "Job":
            yield found["metadata"]["name"], found["spec"]
        for job in found["spec"].get("replicatedJobs", ()):
            yield f"{found['metadata']['name']}-{job['name']}-0", job["template"]["spec"]


def _tfjob_port(replica):
    [container] = [c for c in replica["template"]["spec"]["containers"] if c["name"] == "tensorflow"]
    [port] = [port["containerPort"] for port in container["ports"] if port["name"] == "tfjob-port"]
    return port


def _is_first_of_a_container(pid):
    with open(f"/proc/{pid}/status") as file:
        [ids] = [line.split()[1:] for line in file if line.startswith("NSpid:")]
    return ids[-1] == "1"


class Kubernetes:
    """Manifests that were applied; `pods` run on hosts of their own.

    Args:
      claims: directories by the names of volume claims.
    """

    def __init__(self, hosts, documents, directory, claims=()):
        self.hosts, self.directory, self.claims = hosts, directory, dict(claims)
        self.pods = list(pods_of(documents))
        for pod, host in zip(self.pods, hosts.names, strict=False):
            pod.host = host
        assert all(pod.host for pod in self.pods), "more pods than hosts"
        known = "".join(f"{hosts.addresses[pod.host]} {' '.join(pod.names)}\n" for pod in self.pods)
        (hosts.directory / "names").write_text(f"127.0.0.1 localhost\n{known}")
        [main] = [d["spec"] for d in documents if d["kind"] in ("JobSet", "TFJob")] or [{}]
        self.limits = {job: spec["backoffLimit"] for job, spec in _jobs_of(documents)}
        for pod in self.pods:  # of a TFJob, where a pod may also be one that is never started again
            self.limits.setdefault(pod.job, max(0, main.get("runPolicy", {}).get("backoffLimit", 0) - 1))
        self.whole = main.get("failurePolicy", {}).get("maxRestarts")  # restarts that are left; None without a JobSet
        self.clean = main.get("runPolicy", {}).get("cleanPodPolicy")
        self.uncounted = {  # what happens to a pod with such a status, by the policies of its Job and of the JobSet
            (job, status): rule["action"]
            for job, spec in _jobs_of(documents)
            for rule in spec.get("podFailurePolicy", {}).get("rules", ())
            for status in rule.get("onExitCodes", {}).get("values", ())
        }
        self.restarts_uncounted = any(
            rule["action"] == "RestartJobSetAndIgnoreMaxRestarts" and "PodFailurePolicy" in rule["onJobFailureReasons"]
            for rule in main.get("failurePolicy", {}).get("rules", ())
        )
        self.failures = dict.fromkeys(self.limits, 0)
        self.restarts, self.succeeded = 0, True
        for document in documents:
            if document["kind"] == "NetworkPolicy":
                self._protect(document["spec"])
        for pod in self.pods:
            self._start(pod)

    def _protect(self, policy):
        """Pods that the policy selects are reached by those only that it names, and at these ports."""
        selected = [p for p in self.pods if policy["podSelector"]["matchLabels"].items() <= p.labels.items()]
        rules = ["iif lo accept", "ct state established,related accept"]
        for rule in policy["ingress"]:
            wanted = [source["podSelector"]["matchLabels"].items() for source in rule["from"]]
            sources = [self.hosts.addresses[p.host] for p in self.pods if any(w <= p.labels.items() for w in wanted)]
            ports = [str(port["port"]) for port in rule["ports"] if port["protocol"] == "TCP"]
            rules.append(f"ip saddr {{ {', '.join(sources)} }} tcp dport {{ {', '.join(ports)} }} accept")
        chain = "chain input { type filter hook input priority 0; policy drop; " + "; ".join(rules) + "; }"
        for host in self.hosts.names:
            text = "flush ruleset\n"
            if any(pod.host == host for pod in selected):
                text += f"table inet pods {{\n{chain}\n}}\n"
            sh(f"ip netns exec {self.hosts.prefix}-{host} nft -f -", input=text)

    def _start(self, pod):
        [container] = pod.spec["containers"]
        env = pod.env()
        into = self.directory / f"image-{pod.name}"
        into.mkdir(exist_ok=True)
        mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
        claims = {v["name"]: self.claims[v["persistentVolumeClaim"]["claimName"]] for v in pod.spec.get("volumes", [])}
        group = pod.spec.get("securityContext", {}).get("fsGroup")
        for name, path in mounts.items():
            assert path == "/data"
            if group is not None:  # what the kubelet does with a volume before it starts the pod
                os.chown(claims[name], -1, group)
                os.chmod(claims[name], 0o2775)
        python = dict.fromkeys((sys.prefix, sys.base_prefix))
        command = [
            "sh",
            "-c",
            IMAGE,
            "image",
            into,
            next(iter(claims.values()), ""),
            group or USER,
            *python,
            "--",
            USER,
        ]
        command += [f"PATH={sys.prefix}/bin:/usr/bin:/bin", *(f"{name}={value}" for name, value in env.items())]
        command += [expand(word, env) for word in container["command"]]
        with open(self.directory / f"{pod.name}.log", "a") as log:
            pod.process = self.hosts.on(
                pod.host,
                ["unshare", "--pid", "--fork", *map(str, command)],
                env={"PATH": os.environ["PATH"], "PROJECT": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, pod):
        """Kills a container, as the kernel does when memory runs out."""
        linux.kill(linux.descendants(pod.process.pid), signal.SIGKILL)
        pod.process.wait(DEADLINE)

    def ask(self, pod):
        """What a container's process 1 gets when its pod is to end."""
        [first, *_] = [p for p in linux.descendants(pod.process.pid) if _is_first_of_a_container(p)]
        os.kill(first, signal.SIGTERM)

    def finish(self, until=lambda: False):
        """Runs everything to its end, or until something holds; is True if nothing failed for good."""
        deadline = time.monotonic() + DEADLINE
        while any(pod.process for pod in self.pods) and not until():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)
            for pod in self.pods:
                if pod.process and (status := pod.process.poll()) is not None:
                    pod.process = None
                    pod.statuses.append(status)
                    if status:
                        self._after_failure(pod)
                    elif pod is self.pods[0] and self.clean == "Running":
                        self._ask_to_end()
        return self.succeeded

    def _ask_to_end(self):
        """What TFJob's operator does to the pods that still run when the chief has ended; they get some time then."""
        for pod in self.pods:
            if pod.process:
                linux.kill(linux.descendants(pod.process.pid), signal.SIGTERM)

    def _after_failure(self, pod):
        """A container is started again, or everything, or its Job ends; the pods of other Jobs must end themselves."""
        action = self.uncounted.get((pod.job, pod.statuses[-1]))
        if action == "Ignore":
            self._start(pod)
            return
        if action == "FailJob" and self.restarts_uncounted:
            self.whole += 1
        self.failures[pod.job] += 1
        replaced = action != "FailJob"
        replaced &= self.clean is None or pod.spec["restartPolicy"] != "Never"
        if replaced and self.failures[pod.job] <= self.limits[pod.job]:
            self._start(pod)
            return
        for other in self.pods:
            if other.process and (self.whole is not None or other.job == pod.job):
                self.kill(other)
                other.statuses.append(other.process.poll())
                other.process = None
        if self.whole:
            self.whole -= 1
            self.restarts += 1
            for other in self.pods:
                self._start(other)
        else:
            self.succeeded = False

    def log(self, pod):
        return (self.directory / f"{pod.name}.log").read_text(errors="replace")

    def logs(self):
        return "\n".join(f"--- {pod.name} {pod.statuses}\n{self.log(pod)}" for pod in self.pods)

    def stop(self):
        for pod in self.pods:
            if pod.process:
                self.kill(pod)
