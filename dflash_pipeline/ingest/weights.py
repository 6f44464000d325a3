"""How often a training conversation stands in a snapshot: a function of its id and its source's weight alone."""

from __future__ import annotations

import hashlib
import math

_HASHES = 2**64


def copies(conversation_id: str, weight: float) -> int:
    """The whole part of the weight, and one more for a share of all ids that is its fractional part.

    Which ids these are is decided by a hash: other rows change nothing, and with a larger weight no id has fewer.
    """
    whole = math.floor(weight)
    return whole + (_place(conversation_id) < (weight - whole) * _HASHES)


def _place(conversation_id: str) -> int:
    return int.from_bytes(hashlib.sha256(conversation_id.encode()).digest()[:8], "big")
