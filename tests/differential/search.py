"""Trains the configuration of each seed by Keras and on a setting, and shrinks those that give other numbers."""

from __future__ import annotations

import collections
import json
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tests.differential import configurations
from tests.differential.configurations import Configuration
from tests.differential.jobs import KERAS, Setting, Trainer
from tests.differential.outcomes import Outcome, differences

_TRIES = 40  # trainings to shrink one configuration, at most


@dataclass(frozen=True)
class Mismatch:
    """A configuration with which the numbers are not Keras's.

    Attributes:
      seed: from which it was drawn.
      configuration: shrunk, or as it was drawn.
      kind: "numbers", or the name of the error.
      lines: what differs.
      like: the seed of an earlier mismatch of the same kind, whose shrunk options are among this one's.
    """

    seed: int
    configuration: Configuration
    kind: str
    lines: tuple[str, ...]
    like: int | None = None

    def __str__(self) -> str:
        options = json.dumps(self.configuration)
        if self.like is not None:
            return f"seed {self.seed}: as seed {self.like}: {self.lines[0]}"
        return f"seed {self.seed}: {options}: {self.kind}: {'; '.join(self.lines[:3])}"


@dataclass
class Report:
    """What a search has found; `refused` and `not_by_keras` are reasons with their seeds.

    Those of `crashed` were trained a second time, see `keras_has_crashed`, and are counted by what came of that.
    """

    equal: list[int] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    refused: dict[str, list[int]] = field(default_factory=lambda: collections.defaultdict(list))
    not_by_keras: dict[str, list[int]] = field(default_factory=lambda: collections.defaultdict(list))
    crashed: list[int] = field(default_factory=list)
    seconds: float = 0.0  # of our trainings

    def __str__(self) -> str:
        lines = [
            f"{len(self.equal)} equal, {len(self.mismatches)} not, {sum(map(len, self.refused.values()))} refused, "
            f"{sum(map(len, self.not_by_keras.values()))} that Keras does not train"
        ]
        for what, reasons in (("refused", self.refused), ("Keras does not train", self.not_by_keras)):
            lines += [f"{what}, {len(s)} x: {reason} (seeds {', '.join(map(str, s))})" for reason, s in reasons.items()]
        if self.crashed:
            lines.append(f"crashed in Keras's fit, trained again (seeds {', '.join(map(str, self.crashed))})")
        return "\n".join(lines)


class Reference:
    """What Keras makes of a configuration; each is trained once."""

    def __init__(self) -> None:
        self._trainer = Trainer(KERAS)
        self._known: dict[str, Outcome] = {}

    def train_beside(self, trainer: Trainer, configuration: Configuration) -> tuple[Outcome, Outcome]:
        """Trains by the given trainer and by Keras at the same time; returns ours and Keras's."""
        trainer.ask(configuration)
        theirs = self.train(configuration)
        return trainer.answer(), theirs

    def train(self, configuration: Configuration, permuted: bool = False) -> Outcome:
        """Trains by Keras alone."""
        key = json.dumps([configuration, permuted], sort_keys=True)
        if key not in self._known:
            self._known[key] = self._trainer.train(configuration, permuted)
        return self._known[key]

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *error) -> None:
        self._trainer.close()


def keras_has_crashed(setting: Setting, configuration: Configuration, ours: Outcome) -> bool:
    """Has TensorFlow ended our process by SIGSEGV in a training that Keras's own `fit` goes on with?

    On a `OneDeviceStrategy`, Keras reads through a `MultiDeviceIterator`, which is freed at once if its thread has been
    made but does not run yet; when it does, it reads from what has been freed (`~MultiDeviceBuffer` in
    tensorflow/core/kernels/data/multi_device_iterator_ops.cc). Ours reads without one, on CPUs.
    """
    by_keras = setting.strategy == "one" and configuration.get("between") == "keras"
    return by_keras and ours.error == f"the process ended with {-signal.SIGSEGV}"


class Search:
    """The search on one setting.

    Args:
      shrinks: are mismatches shrunk?
      without: values of options, as text, that are not to be drawn; None for all but the simplest.
      always: options that are not to be the simplest.
      say: is called with each mismatch when it is found.
    """

    def __init__(
        self,
        setting: Setting,
        reference: Reference,
        *,
        shrinks: bool = True,
        without: Mapping[str, set[str] | None] | None = None,
        always: Collection[str] = (),
        say: Callable[[str], object] = str,
    ):
        self._trainer, self._reference = Trainer(setting), reference
        self._shrinks, self._always, self._say = shrinks, always, say
        self._without = dict(without or {})
        if setting.strategy != "one":
            self._without |= {n: v for n, v in configurations.ON_ONE_REPLICA.items() if n not in self._without}

    def run(self, seeds: Iterable[int]) -> Report:
        """Trains the configuration of each seed."""
        report = Report()
        with self._trainer:
            for seed in seeds:
                self._try(seed, report)
        return report

    def _draw(self, seed: int) -> Configuration:
        drawn = {}
        for name, value in configurations.draw(seed, self._always).items():
            left_out = self._without.get(name, set())
            if left_out is not None and str(value) not in left_out:
                drawn[name] = value
        return configurations.sensible(drawn)

    def _try(self, seed: int, report: Report) -> None:
        configuration = self._draw(seed)
        ours, theirs = self._reference.train_beside(self._trainer, configuration)
        if keras_has_crashed(self._trainer.setting, configuration, ours):
            report.crashed.append(seed)
            ours = self._trainer.train(configuration)
        report.seconds += ours.seconds
        if theirs.status != "trained":
            report.not_by_keras[theirs.message].append(seed)
        elif ours.status == "refused":
            report.refused[ours.message].append(seed)
        elif found := self._compare(configuration, ours, theirs):
            mismatch = self._shrunk(seed, configuration, found, report)
            report.mismatches.append(mismatch)
            self._say(str(mismatch))
        else:
            report.equal.append(seed)

    def _compare(self, configuration: Configuration, ours: Outcome, theirs: Outcome) -> tuple[str, ...]:
        """The kind of a mismatch, and its lines; nothing where there is none."""
        if ours.status != "trained":
            return ours.error, ours.message
        dtype = configurations.complete(configuration)["dtype"]
        found = differences(ours, theirs, dtype)
        if found:  # by more than rounding?
            found = differences(ours, theirs, dtype, self._reference.train(configuration, permuted=True))
        return ("numbers", *found) if found else ()

    def _shrunk(self, seed: int, configuration: Configuration, found: tuple[str, ...], report: Report) -> Mismatch:
        kind, *lines = found
        for earlier in report.mismatches:
            known = earlier.configuration.items() <= configuration.items()
            if earlier.like is None and known and earlier.kind == kind:
                return Mismatch(seed, configuration, kind, tuple(lines), earlier.seed)
        tries, last = 0, found

        def fails(candidate: Configuration) -> bool:
            nonlocal tries, last
            tries += 1
            if tries > _TRIES:
                return False
            ours, theirs = self._reference.train_beside(self._trainer, candidate)
            if theirs.status != "trained" or ours.status == "refused":
                return False
            now = self._compare(candidate, ours, theirs)
            if now[:1] != (kind,):
                return False
            last = now
            return True

        if self._shrinks:
            configuration = configurations.shrink(configuration, fails)
        return Mismatch(seed, configuration, kind, last[1:])
