"""Who computes the gradients of a synchronous update."""

import types

import pytest

from tf2dist.cluster.spec import Task
from tf2dist.parameter_server import synchronous
from tf2dist.runtime.session import Session


@pytest.fixture
def unused(monkeypatch):
    """unused(*tasks): from now on TensorFlow does not use these."""
    session = Session()
    monkeypatch.setattr(synchronous.session, "current", lambda: session)

    def use_none_of(*tasks):
        session._monitor = types.SimpleNamespace(lost=list(tasks[:1]), unused=set(tasks))

    return use_none_of


@pytest.mark.parametrize(
    ("needed", "lost", "quotas"),
    [
        (3, (), [1, 1, 1]),
        (2, (), [1, 1, 1]),
        (3, (2,), [2, 1, 0]),
        (2, (0,), [0, 1, 1]),
        (3, (2, 1), [3, 0, 0]),  # also where only the first of these is lost: the other is back, and gets no work yet
        (3, (0, 1, 2), [0, 0, 0]),
    ],
)
def test_those_that_get_no_work_get_no_gradient_to_compute(unused, needed, lost, quotas):
    unused(*(Task("worker", index) for index in lost), Task("ps", 0))
    assert synchronous.gradient_quotas(3, needed) == quotas
