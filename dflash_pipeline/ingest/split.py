"""Which conversations are held out: a function of the first user message alone."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection

_HASHES = 2**64


def prompt_hash(first_user_text: str) -> int:
    """64 bits of SHA-256, blind to case, width and spacing, so that near-copies of a prompt stay together."""
    normal = " ".join(unicodedata.normalize("NFKC", first_user_text).casefold().split())
    return int.from_bytes(hashlib.sha256(normal.encode()).digest()[:8], "big")


def held_out(hashes: Collection[int], validation_fraction: float) -> frozenset[int]:
    """The prompt hashes that go to validation: those below `side_threshold`."""
    if not hashes:
        return frozenset()
    threshold = side_threshold(min(hashes), max(hashes), validation_fraction)
    return frozenset(h for h in hashes if h < threshold)


def side_threshold(lowest: int, highest: int, validation_fraction: float) -> int:
    """Prompt hashes below it are held out, of a corpus whose hashes lie between these two.

    It is the lowest `validation_fraction` of all possible hashes, so it moves no prompt when others come or go. Only
    where it would leave a side empty, with a fraction above 0 and two prompts or more, does it move to take one over.
    """
    if validation_fraction == 0 or lowest == highest:
        return 0
    return min(max(int(validation_fraction * _HASHES), lowest + 1), highest)
