"""A coordinator with its server and workers in one process."""

import tensorflow as tf

import tf2dist
from tf2dist import Cluster, Task
from tf2dist.launch import free_ports

_servers: list = []  # they live as long as somebody knows them
addresses: dict[str, str] = {}  # of the tasks, by their names


def make_strategy(workers):
    """A strategy whose server and `workers` workers are in this process; they end with it."""
    with free_ports.hold(workers + 2) as ports:
        chief, ps, *others = map("127.0.0.1:{}".format, ports)
        cluster = Cluster({"chief": (chief,), "ps": (ps,), "worker": tuple(others)}, Task("chief", 0))
        addresses.update({str(task): cluster.address(task) for task in cluster.tasks})
        for task in cluster.tasks:  # nobody else gets their ports meanwhile
            if task.job != "chief":
                _servers.append(
                    tf.distribute.Server(cluster.spec, job_name=task.job, task_index=task.index, protocol="grpc")
                )
        return tf2dist.make_strategy("ps", cluster=cluster)
