"""The cluster: which tasks are in the job, where each listens, which one this process is, which ones are lost.

Imports no TensorFlow, and of this project only `system` and `errors`."""

from tf2dist.cluster.spec import AnyJobs, Cluster, ClusterError, Task

__all__ = ["AnyJobs", "Cluster", "ClusterError", "Task"]
