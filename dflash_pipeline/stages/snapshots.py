"""Two snapshots side by side: which conversations came, went and were edited, and what became of the lengths."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.layout import open_storage
from dflash_pipeline.store.records import load_record
from dflash_pipeline.store.token_rows import TokenRows

MOST_IDS = 100
"""Ids named of each kind; counts are of all."""


def snapshot_differences(before: str, after: str, storage_dir: Path) -> dict[str, Any]:
    """What distinguishes the second snapshot from the first; each is a fingerprint or the beginning of one."""
    snapshots = open_storage(storage_dir).snapshots
    folders = [_folder(snapshots, name) for name in (before, after)]
    records = [load_record(folder / "snapshot.json", CorpusSnapshot) for folder in folders]
    first, second = (TokenRows(folder).table() for folder in folders)
    joined = _joined(first, second)
    came, went = pc.is_null(joined["digest"]), pc.is_null(joined["digest_after"])
    edited = pc.fill_null(pc.not_equal(joined["digest"], joined["digest_after"]), False)
    same = pc.fill_null(pc.equal(joined["digest"], joined["digest_after"]), False)
    return {
        "before": _facts(records[0], first),
        "after": _facts(records[1], second),
        "same_rule": records[0].rule == records[1].rule,
        "rows": {
            "added": _named(joined, came),
            "removed": _named(joined, went),
            "changed": _named(joined, edited),
            "unchanged": pc.sum(same).as_py() or 0,
        },
    }


def _folder(snapshots: Path, name: str) -> Path:
    found = sorted(path for path in snapshots.glob("[!.]*") if path.name.startswith(name) and "." not in path.name)
    exact = [path for path in found if path.name == name]
    if len(exact or found) != 1 or not name:
        known = ", ".join(sorted(p.name for p in snapshots.glob("[!.]*") if "." not in p.name)) or "none"
        what = f"{len(found)} snapshots begin with {name!r}" if found and name else f"there is no snapshot {name!r}"
        raise Refused(what, where=str(snapshots), fix=f"name one of these: {known}")
    [folder] = exact or found
    if faults := folder_faults(folder):
        raise Refused(faults[0], where=str(folder), fix="run its recipe again: a damaged snapshot is made anew")
    return folder


def _joined(first: pa.Table, second: pa.Table) -> pa.Table:
    columns = ["conversation_id", "digest"]
    joined = first.select(columns).join(
        second.select(columns), keys="conversation_id", join_type="full outer", right_suffix="_after"
    )
    # A join keeps no order.
    return joined.sort_by("conversation_id")


def _named(joined: pa.Table, chosen: pa.ChunkedArray) -> dict[str, Any]:
    ids = joined["conversation_id"].filter(chosen)
    return {"count": len(ids), "ids": ids.slice(0, MOST_IDS).to_pylist()}


def _facts(record: CorpusSnapshot, rows: pa.Table) -> dict[str, Any]:
    sampled = rows.filter(pc.is_valid(rows["sample_id"]))
    # A row has the first of its samples: its copies come before the next row's.
    copies = np.diff(sampled["sample_id"].to_numpy(), append=record.num_samples)
    lengths = np.repeat(sampled["num_tokens"].to_numpy(), copies)
    cut = rows.filter(pc.greater(rows["num_cut"], 0))["conversation_id"]
    return {
        "snapshot": record.fingerprint,
        "num_rows": rows.num_rows,
        "num_samples": record.num_samples,
        "num_tokens": record.num_tokens,
        "num_supervised_tokens": record.num_supervised_tokens,
        "dropped": dict(sorted(Counter(dict(record.dropped)).items())),
        "cut": {"count": len(cut), "ids": cut.slice(0, MOST_IDS).to_pylist()},
        "lengths": _distribution(lengths),
    }


def _distribution(lengths: npt.NDArray[np.int64]) -> dict[str, float]:
    # The smallest length that so many do not exceed: one that occurs.
    quantiles = np.quantile(lengths, [0.0, 0.5, 0.9, 0.99, 1.0], method="inverted_cdf").tolist()
    names = ("shortest", "median", "p90", "p99", "longest")
    return {"mean": float(lengths.mean()), **dict(zip(names, quantiles, strict=True))}
