import gc

import pytest

from tf2dist.system import collector


@pytest.mark.parametrize("enabled", [True, False])
def test_is_afterwards_as_it_was_before(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with collector.paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
