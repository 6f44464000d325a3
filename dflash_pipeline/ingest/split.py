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
    """The prompt hashes that go to validation: those in the lowest `validation_fraction` of all possible ones.

    Being a threshold, it moves no prompt when others come or go. Only where it would leave a side empty, with a
    fraction above 0 and two prompts or more, does the lowest (or highest) hash go over.
    """
    distinct = frozenset(hashes)
    if validation_fraction == 0 or len(distinct) < 2:
        return frozenset()
    threshold = int(validation_fraction * _HASHES)
    lower = frozenset(h for h in distinct if h < threshold)
    if not lower:
        return frozenset({min(distinct)})
    return lower - {max(distinct)} if lower == distinct else lower
