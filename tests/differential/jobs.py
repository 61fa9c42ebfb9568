"""Processes that train what they are asked to: one for a strategy of one process, else a job of our launcher."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass

from tests.differential.configurations import Configuration
from tests.differential.outcomes import Outcome
from tf2dist.system import linux

_MARK = "DIFFERENTIAL_TEST"
_TRAININGS = 60  # of one job, before a new one takes its place: Keras keeps something of each model
_START, _TRAINING = 120.0, 100.0  # seconds until a job has failed that does not answer
_KILL = 30.0


@dataclass(frozen=True)
class Setting:
    """Who trains.

    Attributes:
      strategy: "keras", or one of ours.
      replicas: of a strategy in one process.
      workers: of a job.
      update, local_steps: as of `tf2dist.ParameterServer`.
    """

    strategy: str
    replicas: int | None = None
    workers: int = 1
    update: str = "async"
    local_steps: int = 1

    @property
    def launcher(self) -> list[str]:
        """What starts the job, before the program."""
        if self.strategy in ("ps", "multiworker"):
            servers = ["--ps=1"] if self.strategy == "ps" else []
            return ["launch", "local", *servers, f"--workers={self.workers}", "--"]
        return []


SETTINGS = {
    "one": Setting("one"),
    "mirrored-2": Setting("mirrored", replicas=2),
    "mirrored-3": Setting("mirrored", replicas=3),
    "central-2": Setting("central", replicas=2),
    "multiworker-2": Setting("multiworker", workers=2),
    "ps-sync-2": Setting("ps", workers=2, update="sync"),
    "ps-1": Setting("ps", workers=1),
    "ps-1-local-3": Setting("ps", workers=1, local_steps=3),
}
KERAS = Setting("keras")


class Trainer:
    """Trains configurations in the processes of a setting; starts them anew when one has failed badly.

    A training that a TensorFlow error has ended, or that does not end, may leave collectives or threads behind.
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        self._directory: pathlib.Path | None = None
        self._process: subprocess.Popen | None = None
        self._mark, self._asked = "", 0

    def ask(self, configuration: Configuration, permuted: bool = False) -> None:
        """Begins a training; `answer` waits for what comes of it."""
        if self._process is None or self._asked >= _TRAININGS:
            self.close()
            self._start()
        assert self._directory is not None
        request = self._directory / f"{self._asked}.json"
        request.with_suffix(".part").write_text(json.dumps({"configuration": configuration, "permuted": permuted}))
        request.with_suffix(".part").rename(request)
        self._asked += 1

    def answer(self) -> Outcome:
        """Waits for the training that was asked for."""
        assert self._directory is not None
        assert self._process is not None
        answer = self._directory / f"{self._asked - 1}.pickle"
        deadline = time.monotonic() + _TRAINING + (_START if self._asked == 1 else 0.0)
        while not answer.exists():
            ended = (status := self._process.poll()) is not None
            if ended or time.monotonic() > deadline:
                said = self._last_words()
                self.close()
                return Outcome("failed", said, f"the process ended with {status}" if ended else "it hangs")
            time.sleep(0.01)
        outcome: Outcome = pickle.loads(answer.read_bytes())
        if outcome.fatal:
            self.close()
        return outcome

    def train(self, configuration: Configuration, permuted: bool = False) -> Outcome:
        """Trains a configuration and waits for what comes of it."""
        self.ask(configuration, permuted)
        return self.answer()

    def close(self) -> None:
        """Ends the processes, by force if they do not at once."""
        if self._process is None or self._directory is None:
            return
        (self._directory / "end").touch()
        try:
            self._process.wait(5.0 if self._asked >= _TRAININGS else 0.0)
        except subprocess.TimeoutExpired:
            deadline = time.monotonic() + _KILL
            while (pids := linux.started_with(_MARK, self._mark)) and time.monotonic() < deadline:
                linux.kill(pids, 9)
                time.sleep(0.02)
            self._process.wait(_KILL)
        shutil.rmtree(self._directory)
        self._process = self._directory = None

    def _start(self) -> None:
        self._directory, self._mark, self._asked = (
            pathlib.Path(tempfile.mkdtemp(prefix="differential-")),
            uuid.uuid4().hex,
            0,
        )
        setting = json.dumps(dataclasses.asdict(self.setting))
        program = ["tests.differential.worker", setting, str(self._directory), str(os.getpid())]
        with (self._directory / "output").open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.setting.launcher, *program], stdout=output, stderr=output,
                stdin=subprocess.DEVNULL, env={**os.environ, _MARK: self._mark, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )  # fmt: skip

    def _last_words(self) -> str:
        assert self._directory is not None
        lines = (self._directory / "output").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-300:]

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error) -> None:
        self.close()
