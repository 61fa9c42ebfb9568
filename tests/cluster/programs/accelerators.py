"""As `long`, but workers read as those with GPUs do, through tf.distribute's iterators.

python -m tests.cluster.programs.accelerators OUT
"""

from tf2dist import devices

devices.on_accelerators = lambda strategy: True

import tests.cluster.programs.long  # noqa: E402, F401 - runs it
