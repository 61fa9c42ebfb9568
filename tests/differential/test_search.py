"""The search: what is trained again, and what is a mismatch."""

import pytest

from tests.differential.__main__ import main
from tests.differential.jobs import SETTINGS
from tests.differential.outcomes import Outcome
from tests.differential.search import Report, Search

CRASH = Outcome("failed", "", "the process ended with -11")
TRAINED = Outcome("trained")


class Answers:
    """A trainer, and Keras beside it, whose answers are known."""

    def __init__(self, setting, *outcomes):
        self.setting, self.outcomes = setting, list(outcomes)

    def train(self, configuration):
        return self.outcomes.pop(0)

    def train_beside(self, trainer, configuration):
        return trainer.train(configuration), TRAINED


def searched(setting, configuration, *outcomes):
    """The report on one configuration that is trained with these outcomes."""
    trainer, report = Answers(SETTINGS[setting], *outcomes), Report()
    search = Search(SETTINGS[setting], trainer, shrinks=False)
    search._trainer, search._draw = trainer, lambda seed: configuration
    search._try(7, report)
    return report


def test_a_crash_of_keras_is_tried_again_and_said():
    report = searched("one", {"between": "keras"}, CRASH, TRAINED)
    assert (report.equal, report.crashed, report.mismatches) == ([7], [7], [])
    assert "crashed in Keras's fit, trained again (seeds 7)" in str(report)


@pytest.mark.parametrize(
    ("setting", "configuration", "outcomes"),
    [
        ("one", {"between": "keras"}, [CRASH, CRASH]),
        ("one", {"between": "rate"}, [CRASH]),
        ("mirrored-2", {"between": "keras"}, [CRASH]),
        ("one", {"between": "keras"}, [Outcome("failed", "", "the process ended with -6")]),
    ],
)
def test_any_other_crash_is_a_mismatch(setting, configuration, outcomes):
    report = searched(setting, configuration, *outcomes)
    assert [mismatch.seed for mismatch in report.mismatches] == [7]


def test_an_unknown_setting_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--strategy=one,two"])
    assert ended.value.code == 2
    assert "unknown --strategy=one,two: one of " in capsys.readouterr().err
