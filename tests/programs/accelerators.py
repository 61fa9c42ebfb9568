"""As `long`, but workers read as those with GPUs do, through tf.distribute's iterators.

python -m tests.programs.accelerators OUT
"""

from tf2dist.runtime import devices

devices.on_accelerators = lambda strategy: True

import tests.programs.long  # noqa: E402, F401 - runs it
