"""Programs of `tests.examples` as they are, by Keras's own fit on two devices.

python -m tests.programs.keras_itself OUT NAME...

Saves the results by the programs' names, a pickle: what `tests.examples.run` returns, or type and message of an error.
"""

import pathlib
import pickle
import sys

import tensorflow as tf

import tests.fast_imports  # noqa: F401 (before TensorFlow)
from tests import examples

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # one: the collectives of several disturb each other
results = {}
for name in sys.argv[2:]:
    try:
        with strategy.scope():
            results[name] = examples.run(name, ours=False)
    except Exception as error:
        results[name] = f"{type(error).__name__}: {error}"
pathlib.Path(sys.argv[1]).write_bytes(pickle.dumps(results))
