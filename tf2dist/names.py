"""The strategies' names. Imports no TensorFlow, so that flags can be checked without it."""

STRATEGIES = {
    "one": "one device",
    "mirrored": "several devices of this machine, each with its copy of the variables",
    "central": "several devices of this machine, the variables in the host's memory",
    "multiworker": "several processes in lockstep, each with its copy of the variables",
    "ps": "workers that update variables on parameter servers, each at its own pace",
}
