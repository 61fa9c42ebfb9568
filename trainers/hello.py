"""Greets from every task of a cluster and computes on two of them: python -m trainers.hello --strategy=ps.

By hand, in any order: python -m trainers.hello --job_name=local --task_index=0, and another with --task_index=1.
"""

from absl import flags

from tf2dist.cluster.spec import AnyJobs, ClusterError, Task
from tf2dist.errors import UsageError
from tf2dist.runtime import placement_log
from trainers.common import main

_HOSTS = flags.DEFINE_list(
    "hosts", None, "Tasks of a job of any name, which --job_name gives, host:port,...; task 0 computes. "
    "localhost:2222,localhost:2223 if not given."
)  # fmt: skip
_DEVICES = flags.DEFINE_list(
    "devices", None,
    "Two devices: of x + 300 and the sum, and of x - 66, as /job:local/task:0,/job:local/task:1/gpu:0. "
    "Those of the first two tasks, or this process's first and last."
)  # fmt: skip

_DEFAULT_HOSTS = ["localhost:2222", "localhost:2223"]


def cluster():
    """Returns the cluster of --hosts and a --job_name other than ps and worker; None for other clusters."""
    name, index = flags.FLAGS.job_name, flags.FLAGS.task_index
    if flags.FLAGS.ps_hosts or flags.FLAGS.worker_hosts:
        if _HOSTS.value:
            raise UsageError("--hosts and --ps_hosts, --worker_hosts both say which tasks there are; give one")
        return None
    if not _HOSTS.value and name in (None, "ps", "worker", "evaluator"):
        return None
    if not name or index is None:
        found = f"--job_name={name}" if name else f"--hosts={','.join(_HOSTS.value or ())}"
        raise ClusterError(
            f"{found} needs {'--task_index' if name else '--job_name, which may be any'}: which task is this?"
        )
    return AnyJobs({name: tuple(_HOSTS.value or _DEFAULT_HOSTS)}, Task(name, index))


def prepare(shared):
    """Checks the flags, before TensorFlow is imported."""
    if _DEVICES.value is not None and len(_DEVICES.value) != 2:
        raise UsageError(f"--devices={','.join(_DEVICES.value)} names {len(_DEVICES.value)}; two are right")
    if wrong := [device for device in _DEVICES.value or () if not placement_log.is_device(device)]:
        raise UsageError(
            f"{wrong[0]!r} in --devices is no device; one is written as /cpu:0 or /job:worker/task:1/gpu:0"
        )


def train(run, prepared):
    """Greets from every task, and computes (2 - 66) + (2 + 300)."""
    import tensorflow as tf

    tasks = _tasks(run.shared.cluster)
    for task, device in tasks.items():
        with tf.device(f"{device}/cpu:0"):
            said = tf.strings.join(["Hello, ", "distributed TensorFlow!"])
        run.say(f"{task}: {said.numpy().decode()}")

    first, second = _DEVICES.value or _default_devices(list(tasks.values()))
    steps = []

    def on(device, text, operation, *arguments):
        """Runs the operation on the device and records where TensorFlow placed it."""
        try:
            with tf.device(device):
                result = operation(*arguments, name=text.replace(" ", ""))
        except tf.errors.InvalidArgumentError as error:
            why = placement_log.explain(error, text, device)
            if why is None:
                raise
            raise UsageError(f"{why}; --soft_placement lets TensorFlow choose another device") from None
        steps.append({"op": text, "wanted": device, "got": placement_log.short(result.device)})
        return result

    x = tf.constant(2)
    y = on(second, "x - 66", tf.subtract, x, 66)
    z = on(first, "x + 300", tf.add, x, 300)
    total = int(on(first, "sum", tf.add, y, z))
    run.say(f"{total}\n{placement_log.table(('op', 'wanted', 'got'), [tuple(step.values()) for step in steps])}")
    return {"result": total, "placement": steps}


def _tasks(cluster) -> dict[str, str]:
    """Returns the prefix of each task's device names, by the task in words; without a cluster, this process's."""
    if cluster is None:
        return {"this process": ""}
    tasks = [task for task in cluster.tasks if task.job != "evaluator"]
    return {f"{task} at {cluster.address(task)}": f"/job:{task.job}/task:{task.index}" for task in tasks}


def _default_devices(prefixes: list[str]) -> tuple[str, str]:
    """Returns two devices: one of each of the first two tasks, or the first and the last of this process.

    Args:
      prefixes: of device names, one a task.
    """
    import tensorflow as tf

    if len(prefixes) > 1:
        return f"{prefixes[0]}/cpu:0", f"{prefixes[1]}/cpu:0"
    names = [placement_log.short(d.name) for kind in ("CPU", "GPU") for d in tf.config.list_logical_devices(kind)]
    return names[0], names[-1]


if __name__ == "__main__":
    main.run(train, prepare, has_strategy=False, cluster=cluster)
