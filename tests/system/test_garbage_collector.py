import gc

import pytest

from tf2dist.system import garbage_collector


@pytest.mark.parametrize("enabled", [True, False])
def test_is_afterwards_as_it_was_before(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with garbage_collector.paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
