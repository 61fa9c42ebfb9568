"""What TensorBoard is shown, and at which step."""

import pytest

import tf2dist
from tests.models import classifier, data
from tf2dist.optimizers.averaging import AveragingSGD
from trainers.common.summaries import Summaries


def steps(tf, directory):
    """The steps of each summary in the event files of a directory, by its tag."""
    found = {}
    for file in sorted(directory.glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


@pytest.mark.slow
def test_a_run_that_has_nothing_left_to_do_writes_at_its_last_step(tf, tmp_path):
    """The same command again, after the end: histograms of the weights are not those of step 0."""
    model = classifier(AveragingSGD(0.1, keep_gradients=True))
    tf2dist.fit(model, *data(), batch_size=16, epochs=1, callbacks=[Summaries(str(tmp_path / "first"), every=3)])
    first = steps(tf, tmp_path / "first")
    assert first["cost"][-1] == 7
    kernels = [tag for tag in first if tag.endswith("kernel/gradient")]
    assert [first[tag][-1] for tag in kernels] == [7, 7]
    tf2dist.fit(
        model, *data(), batch_size=16, epochs=1, initial_epoch=1, callbacks=[Summaries(str(tmp_path / "again"))]
    )
    again = steps(tf, tmp_path / "again")
    assert {step for where in again.values() for step in where} == {7}
    assert set(kernels) <= set(again)
