"""The launch backends: this machine, hosts reached by ssh, Slurm, Kubernetes. See `tf2dist.launch.backend`."""
