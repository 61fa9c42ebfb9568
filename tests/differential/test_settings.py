"""Fixed seeds on every setting: our numbers are Keras's, or the reason is given before anything runs."""

import pytest

from tests.conftest import sampled
from tests.differential.jobs import SETTINGS
from tests.differential.search import Reference, Search

SEEDS = range(8)  # of each setting: about four minutes of a core for all of them; `make fuzz` runs more


@pytest.fixture(scope="module")
def reference():
    with Reference() as reference:
        yield reference


# Others differ from these in a number.
SOME = ("one", "mirrored-2", "central-2", "multiworker-2", "ps-sync-2", "ps-1")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sampled(SETTINGS, (), SOME))
def test_trains_as_keras_does(reference, name):
    report = Search(SETTINGS[name], reference).run(SEEDS)
    assert not report.mismatches, "\n".join(map(str, report.mismatches))
    assert len(report.equal) >= len(SEEDS) // 2, report  # with local_steps steps of the model's own are refused
