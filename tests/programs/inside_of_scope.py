"""Run in every process of a parameter server job: trains by synchronous updates, all inside of the strategy's scope.

python -m tests.programs.inside_of_scope OUT
"""

import sys

import tf2dist

strategy = tf2dist.join("ps")

import numpy as np  # noqa: E402

from tests.custom_step_cases import BATCH  # noqa: E402
from tests.models import OPTIMIZERS, classifier, data  # noqa: E402

with strategy.scope():
    model = classifier(OPTIMIZERS["adam"]())
    sync = tf2dist.ParameterServer("sync")
    tf2dist.fit(model, *data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0, parameter_server=sync)
np.savez(sys.argv[1], *model.get_weights())
