"""The collector is as it was when a body ends, however it ends."""

import gc
import weakref
from contextlib import suppress

import pytest

from dflash_pipeline.ingest.collector import collector_off, only_new_collected


class Ring:
    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_off_in_the_body_and_as_it_was_after(enabled):
    if not enabled:
        gc.disable()
    try:
        with suppress(KeyError), collector_off():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_what_is_older_is_collected_again_after_the_body():
    older = Ring()
    gone = weakref.ref(older)
    with suppress(KeyError), only_new_collected():
        newer = weakref.ref(Ring())
        del older
        gc.collect()
        assert newer() is None
        assert gone() is not None
        raise KeyError
    gc.collect()
    assert gone() is None
    assert gc.get_freeze_count() == 0


def test_what_others_froze_stays_frozen():
    gc.freeze()
    try:
        with only_new_collected():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
