"""Python's collector of cycles, kept from looking again and again through what stays anyway.

It looks at every container there is each time that some thousands more were made. Libraries and a vocabulary are
hundreds of thousands of them, and none goes away while rows are read.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """No collection in the body, which makes many objects and keeps them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def only_new_collected() -> Iterator[None]:
    """In the body the collector looks at what was made in it, and at nothing older."""
    if gc.get_freeze_count():  # Somebody else's, to be kept.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
