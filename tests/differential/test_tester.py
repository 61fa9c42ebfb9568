"""The tester itself: equal trainings are equal, and a fault of a few percent is found."""

import contextlib

import keras
import pytest

from tests.conftest import sampled
from tests.differential import parts
from tests.differential.configurations import complete, draw
from tests.differential.outcomes import differences
from tests.differential.training import Runner


def found(configuration, strategy="one", replicas=None):
    """What differs between ours and Keras's."""
    import tf2dist

    ours = Runner(tf2dist.make_strategy(strategy, replicas=replicas)).train(configuration)
    assert ours.status == "trained", ours.message
    theirs, noise = Runner().train(configuration), Runner(permuted=True).train(configuration)
    dtype = complete(configuration)["dtype"]
    assert differences(noise, theirs, dtype) == []
    return differences(ours, theirs, dtype, noise)


def gradients(change):
    """A fault: what the optimizer gets for a list of gradients; `change(gradient, optimizer)`."""

    def plant(monkeypatch):
        from tf2dist.execution import keras_train_step
        from tf2dist.execution.keras_train_step import KerasTrainStep

        original = keras_train_step.global_batch_gradients.apply_gradients

        def apply(step, given):
            changed = [None if g is None else change(g, step.model.optimizer) for g in given]
            original(step.model.optimizer, changed, step.model.trainable_variables)

        monkeypatch.setattr(KerasTrainStep, "apply", apply)

    return plant


def sums(factor):
    """A fault: the loss in the logs."""

    def plant(monkeypatch):
        from tf2dist.execution.keras_train_step import KerasTrainStep

        original = KerasTrainStep._with_losses
        monkeypatch.setattr(
            KerasTrainStep,
            "_with_losses",
            lambda *given: [t * f for t, f in zip(original(*given), [factor] + [1] * 99, strict=False)],
        )

    return plant


def first_rows_twice(monkeypatch):
    """A fault: each batch repeats the first."""
    from tf2dist.input.array_adapter import ArrayBatches

    original = ArrayBatches.slice
    monkeypatch.setattr(
        ArrayBatches, "slice", lambda self, tensors, step, rank, total: original(self, tensors, step * 0, rank, total)
    )


def skipped(gradient, optimizer):
    return gradient * keras.ops.cast(optimizer.iterations != 2, gradient.dtype)


FAULTS = {
    "a gradient of 0.9": (gradients(lambda g, _: 0.9 * g), {}),
    "a gradient of 0.9 in 16 bits": (gradients(lambda g, _: 0.9 * g), {"dtype": "mixed_bfloat16"}),
    "a gradient of 0.9 with momentum": (gradients(lambda g, _: 0.9 * g), {"optimizer": "nesterov", "epochs": 3}),
    "an update without a gradient": (gradients(skipped), {}),
    "an update of adam without a gradient": (gradients(skipped), {"optimizer": "adam"}),
    "an update without a gradient in 16 bits": (gradients(skipped), {"dtype": "mixed_bfloat16", "epochs": 3}),
    "a loss of 0.99": (sums(0.99), {}),
    "a loss of 0.9 in 16 bits": (sums(0.9), {"dtype": "mixed_float16"}),
    "the same batch again": (first_rows_twice, {}),
}


@pytest.mark.parametrize("fault", sampled(FAULTS, (), [name for name in FAULTS if "16 bits" not in name]))
def test_a_planted_fault_is_found(tf, monkeypatch, fault):
    plant, configuration = FAULTS[fault]
    with monkeypatch.context() as planted:
        plant(planted)
        assert found(configuration)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [{}, {"dtype": "mixed_bfloat16", "epochs": 3}, {"optimizer": "nesterov"}])
def test_without_a_fault_nothing_is_found(tf, configuration):
    assert found(configuration) == []
    assert found(configuration, "mirrored", 2) == []


def test_every_optimizer_of_keras_is_drawn(tf):
    used = {kind for kind, _, _ in parts.OPTIMIZERS.values()}
    used |= {keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer, keras.optimizers.Optimizer}
    classes = {c for c in vars(keras.optimizers).values() if isinstance(c, type)}
    assert {c for c in classes if issubclass(c, keras.optimizers.Optimizer)} <= used


@pytest.mark.slow
def test_configurations_make_models(tf):
    """Most of what is drawn is a model that Keras compiles."""
    made = 0
    for seed in range(20):
        with contextlib.suppress(ValueError):
            parts.model(complete(draw(seed)))
            made += 1
    assert made > 15
