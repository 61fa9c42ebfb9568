"""Programs in the architectures of keras.io's examples: changing the call is all, in one process."""

import pytest

from tests import examples
from tests.conftest import SINGLE_PROCESS_SLOWLY, sampled, strategies

pytestmark = pytest.mark.slow
strategy = strategies(SINGLE_PROCESS_SLOWLY)
SAMPLE = (
    "captcha_ctc",
    "ner_transformer",
    "vq_vae",
    "wide_deep_cross",
)


def test_the_text_differs_in_the_calls_alone():
    text, ours = (examples.text_of("mnist_convnet", ours=ours).splitlines() for ours in (False, True))
    assert ours[0] == "import tf2dist"
    changed = [(a, b) for a, b in zip(text, ours[1:], strict=True) if a != b]
    assert [a.split("(")[0] for a, _ in changed] == [
        "history = model.fit",
        "score = model.evaluate",
        "predicted = model.predict",
    ]
    assert all(b.replace("tf2dist.", "model.").replace("(model, ", "(") == a for a, b in changed)


@pytest.mark.parametrize("name", sampled(examples.NAMES, (), SAMPLE))
def test_changing_the_call_is_all(strategy, name):
    expected = examples.by_keras(name)
    with strategy.scope():
        ours = examples.run(name, ours=True)
    examples.check(name, ours, expected, several=strategy.num_replicas_in_sync > 1)
