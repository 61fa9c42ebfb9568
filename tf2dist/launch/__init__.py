"""Starts the processes of a job: python -m launch BACKEND [options] -- MODULE_OR_SCRIPT [args]. Imports no TensorFlow.

- `command_line` reads the command; `backend` is the interface that it calls, `backends` has the implementations.
- `cluster_layout` decides which task runs on which host; `hostfile` reads the files that name hosts.
- `supervisor` runs a job's processes, `process_group` one attempt at it, `restarts` counts how many there may be.
- `fork_server` imports TensorFlow once and forks the processes; `user_program` is what a forked child runs.

It needs Linux 5.3 or newer (pidfd, epoll, prctl).
"""
