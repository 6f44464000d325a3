"""Tokens that earlier snapshots hold, found by what a conversation says: the snapshots are their own cache.

Nothing is kept twice and nothing needs to be pruned: a snapshot that is deleted is a cache no more. One that does not
match its hashes is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import DropReason
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.records import load_record
from dflash_pipeline.store.token_rows import TokenRow, TokenRows
from dflash_pipeline.store.tokens import TokenStore

logger = logging.getLogger(__name__)

MOST_SNAPSHOTS = 4
"""Earlier snapshots that are looked into, newest first."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KnownTokens:
    """What an earlier snapshot made of a conversation: a sample, or the reason why there is none."""

    reason: DropReason | None
    input_ids: npt.NDArray[np.int32]
    spans: tuple[tuple[int, int], ...]
    num_cut: int


class EarlierSnapshots:
    """The snapshots made under one rule that are whole."""

    def __init__(self, snapshots: Path, rule: str) -> None:
        self._opened = [_open(folder, snapshot) for folder, snapshot in _candidates(snapshots, rule)]

    def find(self, digest: bytes) -> KnownTokens | None:
        for rows, store in self._opened:
            if (row := rows.find(digest)) is not None:
                return _known(row, store)
        return None


def _known(row: TokenRow, store: TokenStore) -> KnownTokens:
    if row.sample_id is None:
        return KnownTokens(reason=row.reason, input_ids=np.zeros(0, np.int32), spans=(), num_cut=0)
    return KnownTokens(
        reason=None,
        input_ids=store.input_ids(row.sample_id),
        spans=store.supervised_spans(row.sample_id),
        num_cut=row.num_cut,
    )


def _candidates(snapshots: Path, rule: str) -> Sequence[tuple[Path, CorpusSnapshot]]:
    paths = sorted(snapshots.glob("[!.]*/snapshot.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    found: list[tuple[Path, CorpusSnapshot]] = []
    for path in paths:
        if len(found) == MOST_SNAPSHOTS or ".damaged-" in path.parent.name:
            continue
        try:
            snapshot = load_record(path, CorpusSnapshot)
        except Refused:
            # Of an older version, or damaged: who needs it will say so.
            continue
        if snapshot.rule != rule:
            continue
        if faults := folder_faults(path.parent):
            logger.warning("snapshot %s is not used for what it has in common: %s", path.parent.name, faults[0])
            continue
        found.append((path.parent, snapshot))
    return found


def _open(folder: Path, snapshot: CorpusSnapshot) -> tuple[TokenRows, TokenStore]:
    return TokenRows(folder), TokenStore(folder, snapshot.shards)
