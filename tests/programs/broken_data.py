"""Run in every process of a cluster: trains on data that something is wrong with.

python -m launch local --workers=2 -- tests.programs.broken_data STRATEGY UPDATE WHAT
"""

import sys

import tf2dist

strategy = tf2dist.join(sys.argv[1])

from tests.input.python_kinds import BROKEN, STEPS  # noqa: E402
from tests.models import OPTIMIZERS, classifier  # noqa: E402

options = tf2dist.ParameterServer(sys.argv[2]) if sys.argv[1] == "ps" else None
with strategy.scope():
    model = classifier(OPTIMIZERS["sgd"]())
tf2dist.fit(
    model, BROKEN[sys.argv[3]][0](), epochs=2, steps_per_epoch=STEPS, shuffle=False, parameter_server=options
)  # fmt: skip
