"""Short identities of content: equal content, equal fingerprint, on every machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

FINGERPRINT_LENGTH = 16
"""Hexadecimal digits kept: 64 bits, enough for every record one installation will ever hold."""


def fingerprint(**parts: Any) -> str:
    """Identity of named parts: plain values, records, mappings, sequences and numpy arrays.

    Mappings and sets do not depend on order; floats are hashed by their shortest exact text; arrays by type, shape and
    bytes. Anything else is a `TypeError`, so that an object's address can never become part of an identity.
    """
    text = json.dumps(_plain(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_LENGTH]


def array_digest(*arrays: np.ndarray) -> str:
    """SHA-256 over type, shape and little-endian bytes of arrays, in the order given."""
    digest = hashlib.sha256()
    for array in arrays:
        if array.dtype.hasobject:
            raise TypeError("cannot digest an array of objects: its bytes are addresses")
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        digest.update(f"{little.dtype.str}{little.shape}".encode())
        digest.update(little.data)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": repr(float(value))}  # float() so that numpy's doubles read the same.
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, np.ndarray):
        return {"array": array_digest(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted(json.dumps(_plain(item), sort_keys=True) for item in value)}
    raise TypeError(f"cannot fingerprint a {type(value).__name__}: give plain values, records or arrays")
