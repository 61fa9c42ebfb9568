"""Guards: each test of an upstream fault fails when it is mended, and its workaround can go."""

import contextlib
import inspect
import subprocess
import sys
import textwrap

import keras
import pytest

import tf2dist
from tests.models import OPTIMIZERS, classifier, data


def operations(tf, variable):
    graph = tf.function(lambda: variable.assign_add(1)).get_concrete_function().graph
    return {operation.type for operation in graph.get_operations()}


def test_upstream_counts_by_reading_and_writing(tf):
    """keras#18624: fails when `keras.Variable.assign_add` is one operation; then AtomicCounter can go."""
    counter = keras.Variable(0, dtype="int64", trainable=False)
    assert "AssignAddVariableOp" not in operations(tf, counter)


def test_ours_counts_in_one_operation(tf):
    from tf2dist.compat.atomic_counter import count_atomically

    model = classifier(OPTIMIZERS["sgd"]())
    model.optimizer.build(model.trainable_variables)
    name, before = model.optimizer.iterations.path, model.optimizer.variables
    count_atomically(model.optimizer)
    assert "AssignAddVariableOp" in operations(tf, model.optimizer.iterations)
    assert model.optimizer.iterations.path == name
    assert all(a is b for a, b in zip(model.optimizer.variables, before, strict=True))
    model.optimizer.iterations.assign(0)
    model.optimizer.iterations.assign_add(2)
    assert tf2dist.updates(model) == 2


@pytest.mark.slow
def test_upstream_central_storage_refuses_state_without_aggregation(tf):
    """Fails when Keras gives its states an aggregation; then aggregate_by_default can go."""
    strategy = tf.distribute.experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0")
    with strategy.scope():
        model = classifier(OPTIMIZERS["sgd"](), keras.layers.Dropout(0.5))
    with pytest.raises(ValueError, match="You must specify an aggregation method"):
        tf2dist.fit(model, data(), batch_size=16)


def total(tf, strategy):
    """What the replicas' ones add up to."""

    def one():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([]))

    function = tf.function(lambda: strategy.run(one))
    return float(strategy.experimental_local_results(function())[0])


def test_mirrored_strategies_of_several_sizes_beside_each_other(tf):
    for replicas in (2, 3, 2):
        strategy = tf2dist.make_strategy("mirrored", replicas=replicas)
        assert total(tf, strategy) == replicas


def test_one_mirrored_strategy_for_the_same_devices(tf):
    first = tf2dist.make_strategy("mirrored", replicas=2)
    assert tf2dist.make_strategy("mirrored", replicas=2) is first


@pytest.mark.slow
def test_upstream_mirrored_strategies_share_collective_keys():
    """Fails when a second MirroredStrategy works beside the first; then `mirrored` can go."""
    program = """
        import tensorflow as tf
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        for size in (2, 3):
            strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
            @tf.function
            def total():
                def one():
                    return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([size]))
                return strategy.run(one)
            total()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "Shape mismatch in the collective instance" in done.stderr


def updated(tf, strategy, optimizer, apply):
    """What one update makes of a weight of 0 whose gradient is 1 on each of two replicas."""
    with strategy.scope():
        weight = keras.Variable([0.0])
        optimizer = optimizer()
        optimizer.build([weight])

    @tf.function
    def update():
        strategy.run(lambda: apply(optimizer, [tf.ones([1])], [weight]))

    update()
    return float(keras.ops.convert_to_numpy(weight)[0])


def upstream(optimizer, gradients, variables):
    optimizer.apply(gradients, variables)


@pytest.fixture
def mirrored(tf):
    return tf2dist.make_strategy("mirrored", replicas=2)


def clipped():
    return keras.optimizers.SGD(1.0, clipvalue=1.0)


def test_upstream_clips_the_parts_of_a_gradient(tf, mirrored):
    """Fails when Keras clips the sum over the replicas; then global_batch_gradients.apply need not sum first."""
    from tf2dist.compat import global_batch_gradients

    assert updated(tf, mirrored, clipped, upstream) == -2.0
    assert updated(tf, mirrored, clipped, global_batch_gradients.apply_gradients) == -1.0


@pytest.mark.parametrize(
    "options", [{"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}]
)
def test_upstream_decides_inside_of_a_replica(tf, mirrored, options):
    """Fails when Keras accumulates, or overwrites with averages, on several replicas; then ours can go."""
    from tf2dist.compat import global_batch_gradients

    with pytest.raises(Exception, match="merge_call"):
        updated(tf, mirrored, lambda: keras.optimizers.SGD(1.0, **options), upstream)
    updated(tf, mirrored, lambda: keras.optimizers.SGD(1.0, **options), global_batch_gradients.apply_gradients)


def test_upstream_scales_losses_inside_of_a_replica(tf, monkeypatch):
    """Fails when Keras's LossScaleOptimizer works on central storage; then _loss_scaling can go."""
    from tf2dist.compat import global_batch_gradients

    central = tf2dist.make_strategy("central", replicas=2)

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0)

    assert updated(tf, central, scaled, global_batch_gradients.apply_gradients) == -2.0
    monkeypatch.setattr(global_batch_gradients._loss_scaling, "_replacements", {})
    with pytest.raises(Exception, match="merge_call"):
        updated(tf, central, scaled, global_batch_gradients.apply_gradients)


def test_upstream_applies_to_variables_only(tf):
    """Fails when the TensorFlow backend's stateless_apply works; then on_tensors can go."""
    optimizer = OPTIMIZERS["adam"]()
    weight = keras.Variable([0.0])
    optimizer.build([weight])
    with pytest.raises(ValueError, match="stateless_apply is not supported"):
        optimizer.stateless_apply([v.value for v in optimizer.variables], [tf.ones([1])], [weight.value])


def test_ours_applies_to_tensors(tf):
    from tf2dist.compat.stateless_optimizer import on_tensors

    def made():
        optimizer, weight = OPTIMIZERS["adam"](), keras.Variable([0.5])
        optimizer.build([weight])
        return optimizer, weight

    optimizer, weight = made()
    mapping = [(v, tf.convert_to_tensor(v.value)) for v in [weight, *optimizer.variables]]
    with keras.StatelessScope(mapping) as scope, on_tensors(optimizer):
        optimizer.apply([tf.ones([1])], [weight])
    found = [scope.get_current_value(v).numpy() for v, _ in mapping]
    theirs, expected = made()
    theirs.apply([tf.ones([1])], [expected])
    assert float(weight.numpy()[0]) == 0.5
    for ours, variable in zip(found, [expected, *theirs.variables], strict=True):
        assert ours == pytest.approx(variable.numpy())


def gradient_of_what_is_computed_again(tf, noted=None):
    """The gradient of a tensor, number 1 of two, that a function under `tf.recompute_grad` has from outside."""
    found = []

    @tf.function
    def trace(x, first, second):
        noting = noted([first, second]) if noted else contextlib.nullcontext()
        with tf.GradientTape() as tape, noting as numbers:
            tape.watch([first, second])
            y = tf.recompute_grad(lambda x: tf.cond(x > 0.0, lambda: x * second, lambda: x))(x * first)
        found.extend([tape.gradient(y, second), numbers])
        return y

    trace(*map(tf.constant, (1.0, 2.0, 3.0)))
    return found


def test_upstream_has_no_gradient_of_tensors_that_are_no_arguments(tf):
    """Fails when `tf.recompute_grad` has; then reads_noted can go."""
    assert gradient_of_what_is_computed_again(tf)[0] is None


def test_ours_knows_what_such_functions_read(tf):
    from tensorflow.python.ops import custom_gradient

    from tf2dist.compat.custom_gradients import reads_noted

    before = custom_gradient._graph_mode_decorator
    assert gradient_of_what_is_computed_again(tf, reads_noted)[1] == {1}
    assert custom_gradient._graph_mode_decorator is before


class Rescales(keras.layers.Layer):
    """Writes its weight, which is trained, while it is called, and uses it before and after."""

    def build(self, input_shape):
        self.weight = self.add_weight(shape=(), initializer=keras.initializers.Constant(3.0))

    def call(self, inputs):
        before = inputs * self.weight
        self.weight.assign(self.weight * 2.0)
        return before + 10.0 * inputs * self.weight


def gradient_of_rescales(tf, scope):
    """The gradient of a weight that was overwritten, inside of `scope(layer)`, or as a variable without one."""
    layer = Rescales()
    layer.build(())
    if scope is None:
        with tf.GradientTape() as tape:
            result = layer(tf.ones([]))
        return float(tape.gradient(result, layer.weight.value))
    held = tf.convert_to_tensor(layer.weight.value)
    with tf.GradientTape() as tape:
        tape.watch(held)
        with scope([(layer.weight, held)]):
            result = layer(tf.ones([]))
    return float(tape.gradient(result, held))


def test_upstream_differentiates_through_what_is_assigned_in_a_scope(tf):
    """Fails when a `StatelessScope` leaves gradients as they are; then those of OverlayScope can go."""
    assert gradient_of_rescales(tf, None) == 11.0
    assert gradient_of_rescales(tf, keras.StatelessScope) == 21.0


def test_ours_differentiates_as_with_variables(tf):
    from tf2dist.compat.stateless_scope import OverlayScope

    assert gradient_of_rescales(tf, lambda values: OverlayScope(values, ())) == 11.0


def test_upstream_holds_back_what_is_written_to_any_variable(tf):
    """Fails when a `StatelessScope` leaves variables alone that it was not given; then HeldBackScope can go."""
    given, other = keras.Variable(1.0), keras.Variable(1.0)
    with keras.StatelessScope([(given, tf.constant(2.0))]):
        given.assign_add(1.0)
        other.assign_add(1.0)
    assert (given.numpy(), other.numpy()) == (1.0, 1.0)


def test_ours_holds_back_what_is_written_to_some(tf):
    from tf2dist.compat.atomic_counter import count_atomically
    from tf2dist.compat.stateless_scope import HeldBackScope, holds_back

    given, other = keras.Variable(1.0), keras.Variable(1.0)
    model = classifier(OPTIMIZERS["sgd"]())
    count_atomically(model.optimizer)
    penalized = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
    penalized.build([1, 2])
    with HeldBackScope([(given, tf.constant(2.0))]) as scope:
        given.assign_add(1.0)
        other.assign_add(1.0)
        assert (float(given.value), float(other.value)) == (3.0, 2.0)
        assert (holds_back(given), holds_back(other)) == (True, False)
        assert "AssignAddVariableOp" in operations(tf, model.optimizer.iterations)
        penalized(tf.ones([1, 2]))
        assert float(penalized.losses[0]) == 1.0
    assert (given.numpy(), other.numpy()) == (1.0, 2.0)
    assert [float(value) for value in scope.values()] == [3.0]


@pytest.fixture
def two_gpus(tf, monkeypatch):
    """Two GPUs that are not there, in a context of TensorFlow's that has made no devices yet."""
    from tensorflow.python.eager import context

    here = context.Context()
    here._physical_devices = [context.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(2)]
    here._physical_device_to_index = {gpu: n for n, gpu in enumerate(here._physical_devices)}
    here._visible_device_list, here._pluggable_devices = list(here._physical_devices), []
    here._memory_growth_map = dict.fromkeys(here._physical_devices)
    monkeypatch.setattr(context, "_context", here)
    return here._physical_devices


def options_of_gpus():
    """What TensorFlow would make its GPUs with."""
    from tensorflow.python.eager import context

    return context.context().config.gpu_options


def divide(tf, gpu):
    tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=100)] * 2)


def test_upstream_memory_growth_is_forgotten_beside_a_divided_gpu(tf, two_gpus):
    """Fails when TensorFlow keeps it; then `allow_memory_growth` can be `set_memory_growth` alone."""
    tf.config.experimental.set_memory_growth(two_gpus[0], True)
    divide(tf, two_gpus[1])
    assert tf.config.experimental.get_memory_growth(two_gpus[0])
    assert not options_of_gpus().allow_growth


@pytest.mark.parametrize("divided_first", [False, True])
def test_our_memory_growth_is_kept(tf, two_gpus, divided_first):
    from tf2dist.compat import eager_context

    if divided_first:
        divide(tf, two_gpus[1])
    for gpu in two_gpus[:1] if divided_first else two_gpus:
        eager_context.allow_memory_growth(gpu)
    assert options_of_gpus().allow_growth
    divide(tf, two_gpus[1])
    found = options_of_gpus()
    assert found.allow_growth
    assert [list(gpu.memory_limit_mb) for gpu in found.experimental.virtual_devices] == [[], [100, 100]]
    assert found.visible_device_list == "0,1"


def test_upstream_does_not_move_a_model_into_a_scope(tf):
    """Fails when Keras trains a model made outside of the scope; then move_variables can go."""
    model = classifier(OPTIMIZERS["sgd"]())
    with tf2dist.make_strategy("mirrored", replicas=2).scope(), pytest.raises(AssertionError):
        model.fit(*data(), verbose=0)


def test_upstream_says_nothing_about_silent_peers(tf):
    """Fails when a `MultiWorkerMirroredStrategy` says how long peers may be silent; then it may not need a patch."""
    from tensorflow.python.distribute import collective_all_reduce_strategy

    source = inspect.getsource(collective_all_reduce_strategy)
    assert "configure_coordination_service(" in source
    assert "heartbeat_timeout" not in source


@pytest.mark.parametrize("cpus", [0, 3])
def test_replicas_of_a_process_on_its_cpu(tf, cpus):
    """Fails when a `MultiWorkerMirroredStrategy` counts CPU devices; then it needs no patch for them."""
    from tf2dist.compat.multiworker_strategy import multi_worker_mirrored

    assert len(tf.config.list_logical_devices("CPU")) >= 3
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({}), num_accelerators={"CPU": 3}
    )
    made = multi_worker_mirrored(resolver, tf.distribute.experimental.CommunicationOptions(), 60.0, cpus)
    assert made.num_replicas_in_sync == (cpus or 1)
    upstream = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    assert upstream.num_replicas_in_sync == 1
