"""python -m tests.examples NAME one|mirrored|central: what differs from Keras on one device."""

import sys

import tests.fast_imports  # noqa: F401 (before TensorFlow)


def main() -> int:
    name, strategy = sys.argv[1:]
    import tensorflow as tf

    import tf2dist
    from tests import examples

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )
    expected = examples.by_keras(name)
    with tf2dist.make_strategy(strategy, **({} if strategy == "one" else {"replicas": 2})).scope():
        ours = examples.run(name, ours=True)
    found = examples.differences(ours, expected)
    print("\n".join(found) or "equal")
    return bool(found)


sys.exit(main())
