"""Where the description of a job comes from: environment variables of a platform, or host flags.

Each platform is a class in a file of its own, an `Environment`. To add one, write its class and add it to
`ENVIRONMENTS` in `detect_environment`. Imports no TensorFlow.
"""

from tf2dist.cluster.environments.detect_environment import ENVIRONMENTS, Found, find, from_environment
from tf2dist.cluster.environments.environment import Environment
from tf2dist.cluster.environments.host_flags import HostFlags, from_hosts

__all__ = ["ENVIRONMENTS", "Environment", "Found", "HostFlags", "find", "from_environment", "from_hosts"]
