"""The target's features of a whole snapshot on disk, for sets small enough: one flat file, mapped, float32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.store.records import load_record

FEATURES_FILE = "features.f32"
FEATURES_VERSION = 1
"""Part of a cache's identity: raised when the same snapshot and target would give other numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureCache:
    """What a folder of features holds. Complete: whatever decides the numbers is in it."""

    snapshot: str
    target: str
    tap_layer_ids: tuple[int, ...]
    width: int
    """Numbers of one token: taps * hidden size."""
    num_tokens: int

    @property
    def num_bytes(self) -> int:
        return self.num_tokens * self.width * np.dtype(np.float32).itemsize

    @property
    def fingerprint(self) -> str:
        return fingerprint(cache=self, version=FEATURES_VERSION)


class FeatureStore:
    """Features [tokens, F] of a sample by its id, without a copy."""

    def __init__(self, folder: Path, lengths: npt.NDArray[np.int64]) -> None:
        self.cache = load_record(folder / "cache.json", FeatureCache)
        # _firsts[i] is the first row of sample i; the cache holds samples 0 … as far as its tokens reach.
        self._firsts = np.concatenate([[0], np.cumsum(lengths)])
        path = folder / FEATURES_FILE
        if not path.is_file() or path.stat().st_size != self.cache.num_bytes:
            raise Refused(
                f"not the {self.cache.num_bytes:,} bytes that cache.json says",
                where=str(path),
                fix="delete the folder: the features are made again",
            )
        self._rows = np.memmap(path, dtype=np.float32, mode="r", shape=(self.cache.num_tokens, self.cache.width))

    def features(self, sample_id: int) -> npt.NDArray[np.float32]:
        first, end = int(self._firsts[sample_id]), int(self._firsts[sample_id + 1])
        if end > self.cache.num_tokens:
            raise Refused(
                f"sample {sample_id} lies behind the {self.cache.num_tokens:,} tokens that are cached",
                where="features",
                fix="only training samples are cached; use the snapshot that the cache was made for",
            )
        return self._rows[first:end]
