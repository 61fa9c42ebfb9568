"""What nvidia-smi prints, and which GPUs users name, nearly right or not at all."""

import contextlib
from unittest import mock

from hypothesis import given

from tests.hostile import bounded, examples, parsed, texts, variables
from tf2dist.errors import UsageError
from tf2dist.system import environment_variables, gpus

_LIST = "GPU 0: NVIDIA A (UUID: GPU-111)\n  MIG 1g.5gb Device 0: (UUID: MIG-5)\nGPU 1: NVIDIA B (UUID: GPU-222)\n"
_MEMORY = "0, GPU-111, 16384, 16000\n1, GPU-222, 16384, 15000\n"


@examples()
@given(texts(_LIST), texts(_MEMORY), variables("0,1", "GPU-111", "MIG-5", "-1", "1"))
def test_gpus(listing, memory, asked):
    def look(*arguments):
        return listing if "--list-gpus" in arguments else memory

    with mock.patch.object(gpus, "nvidia_smi", look):
        names = parsed(UsageError, gpus.visible, {gpus.VISIBLE: asked})
        for found in parsed((), gpus.memory, names or ("0", "GPU-1"), {gpus.VISIBLE: asked}).values():
            assert found.total >= 0
        parsed((), gpus.asked_for, {gpus.VISIBLE: asked})


@examples()
@given(variables("1", "0.5", "120"))
def test_variables(text):
    for read in (
        lambda: environment_variables.seconds("A", {"A": text}, 1.0),
        lambda: environment_variables.count("A", {"A": text}),
        lambda: environment_variables.switch("A", {"A": text}),
    ):
        with contextlib.suppress(ValueError), bounded():
            assert (found := read()) is None or 0 <= found < float("inf")


def test_gpus_of_very_large_numbers():
    huge = "9" * 5000

    def look(*arguments):
        return _LIST if "--list-gpus" in arguments else f"0, GPU-111, {huge}, {huge}\n"

    with mock.patch.object(gpus, "nvidia_smi", look):
        assert gpus.memory(("0",), {}) == {}
        assert parsed(UsageError, gpus.visible, {gpus.VISIBLE: huge}) is None
