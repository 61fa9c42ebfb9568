"""Peers with data or arguments of unlike lengths are told so; where a callback of one stops, all do. None waits on."""

import pytest

from tests.jobs import run_program

SAID = [
    "fit: fit needs the same steps_per_epoch in all peers of a job, found 7 in worker 0, 4 in worker 1; give all of "
    "them as much data and the same arguments",
    "epochs: fit needs the same epochs in all peers of a job, found 1 in worker 0, 2 in worker 1; give",
    "seed: fit needs the same seed in all peers of a job, found 0 in worker 0, 1 in worker 1; give",
    "validation: fit needs the same validation_steps in all peers of a job, found 7 in worker 0, 4 in worker 1; give",
    "evaluate: evaluate needs the same steps in all peers of a job, found 1 in worker 0, 2 in worker 1; give",
    "predict: predict needs the same steps in all peers of a job, found 7 in worker 0, 4 in worker 1; give",
    "checkpoint: all peers of a job need the same callbacks that save and restore, found Checkpoint in worker 0, none "
    "in worker 1; give them to every peer",
    "functions: the peers of a job call fit, evaluate and predict together, found evaluate in worker 0, predict in "
    "worker 1",
    "optimizer: fit needs the same optimizer in all peers of a job, found SGD in worker 0, Adam in worker 1; give",
    "then: 14 updates",
    "rate: after epoch 2 the learning rate is 0.1 in worker 0, 0.05 in worker 1; a callback that changes it has to run "
    "in all peers",
]


@pytest.mark.slow
def test_every_peer_is_told(tmp_path):
    printed = run_program(["--workers=2"], "unlike_peers", tmp_path, limit=120)
    for said in SAID:
        assert printed.count(said) == 2, printed
