"""Plans on disk: one Parquet file an epoch, one row a micro-batch; sealed by `plan-<fingerprint>.json`.

The folder is named by snapshot and spec without the number of epochs, so six epochs become eight by adding two files.
Every file is written under a temporary name and renamed; a file that is there is whole, and is checked when read.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_pipeline.contracts.batching import BatchingSpec, Layout
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.faults import fault_point
from dflash_pipeline.store.files import set_aside, write_atomic
from dflash_pipeline.store.records import load_record, save_record

SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("step", pa.int64()),
        ("slot", pa.int64()),
        ("filler", pa.bool_()),
        ("padded_length", pa.int64()),
        ("num_tokens", pa.int64()),
        ("supervised_tokens", pa.int64()),
        ("cost", pa.float64()),
        ("sample_ids", pa.large_list(pa.int64())),
    ]
)
SPEC_FILE = "spec.json"
HEAD = b"dflash_manifest"
"""Key of the Parquet metadata that holds what is true of the whole epoch."""
SEAL = b"sha256-of-this-file-with-zeros-here:"
"""Stands in the metadata before the file's own hash: a damaged byte is found before anything is decoded."""

_UNSEALED = b"0" * 64
_AGAIN = "make it again as it was made: with `dflash run`, or with `dflash plan` and the same options"
"""Either writes what is missing or damaged anew, and the rest as it was."""


def plan_folder(plans: Path, *, snapshot: str, spec: BatchingSpec) -> Path:
    """Where the epochs of this snapshot and spec lie, however many there are."""
    return plans / fingerprint(snapshot=snapshot, spec=spec.fingerprint)


def epoch_file(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:03d}.parquet"


def save_spec(folder: Path, spec: BatchingSpec) -> None:
    save_record(folder / SPEC_FILE, spec)


def check_spec(folder: Path, plan: RunPlan) -> None:
    """Refuse a spec file that is gone, not a spec, or another than the sealed one."""
    path = folder / SPEC_FILE
    if not path.exists():
        raise _damaged(path, "it is missing")
    if load_record(path, BatchingSpec) != plan.spec:
        raise _damaged(path, f"it is not the spec that plan {plan.fingerprint} sealed")


def save_epoch(folder: Path, manifest: EpochManifest) -> None:
    """Write one epoch, whole or not at all."""
    steps, slots = manifest.padded_length.shape
    columns = [
        np.full(steps * slots, manifest.epoch),
        np.repeat(np.arange(steps), slots),
        np.tile(np.arange(slots), steps),
        manifest.filler.ravel(),
        manifest.padded_length.ravel(),
        manifest.num_tokens.ravel(),
        manifest.supervised_tokens.ravel(),
        manifest.cost.ravel(),
        pa.LargeListArray.from_arrays(manifest.offsets, manifest.sample_ids),
    ]
    head = {
        "epoch": manifest.epoch,
        "num_corpus_samples": manifest.num_corpus_samples,
        "slots_per_step": manifest.slots_per_step,
        "token_budget": manifest.token_budget,
        "layout": manifest.layout,
        "dropped": base64.b64encode(manifest.dropped.astype("<i8").tobytes()).decode(),
        "digest": manifest.digest(),
    }
    table = pa.table(columns, schema=SCHEMA).replace_schema_metadata({HEAD: json.dumps(head), "seal": SEAL + _UNSEALED})
    sink = pa.BufferOutputStream()
    # Ids in no order: a dictionary of them is as large as they are, and takes twice the time.
    encoding = {"sample_ids.list.element": "DELTA_BINARY_PACKED"}
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, column_encoding=encoding)
    fault_point("manifest.before-write")
    write_atomic(epoch_file(folder, manifest.epoch), _sealed(sink.getvalue().to_pybytes()))
    fault_point("manifest.after-write")


def load_epoch(folder: Path, epoch: int) -> EpochManifest:
    """Read an epoch and check it: its invariants, and the digest it was written with."""
    path = epoch_file(folder, epoch)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Refused("this epoch has no manifest", where=str(path), fix=_AGAIN) from None
    except OSError as error:
        raise _damaged(path, str(error)) from None
    if data != _sealed(data):
        raise _damaged(path, "its bytes do not match the hash it was written with")
    try:
        # On this thread: one of Arrow's own, that lets go of Python's bytes while Python ends, aborts the process.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        head = json.loads((table.schema.metadata or {})[HEAD])
        manifest = _manifest(table, head)
    except ContractBroken as broken:
        raise _damaged(path, f"{broken.where}: {broken.what}") from None
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if manifest.epoch != epoch:
        raise _damaged(path, f"it holds epoch {manifest.epoch}")
    if manifest.digest() != head["digest"]:
        raise _damaged(path, "its rows do not match the digest it was written with")
    return manifest


def load_or_set_aside(folder: Path, epoch: int) -> EpochManifest | None:
    """The epoch if it is there and whole; a damaged file is renamed out of the way. For a stage that can rebuild."""
    path = epoch_file(folder, epoch)
    if not path.exists():
        return None
    try:
        return load_epoch(folder, epoch)
    except Refused:
        set_aside(path)
        return None


def seal_plan(folder: Path, plan: RunPlan) -> Path:
    """Write `plan-<fingerprint>.json`, which says which epochs belong together. Returns its path."""
    path = folder / f"plan-{plan.fingerprint}.json"
    fault_point("plan.before-seal")
    save_record(path, plan)
    fault_point("plan.after-seal")
    return path


def load_plan(folder: Path, plan_fingerprint: str | None = None) -> RunPlan:
    """A sealed plan by fingerprint, or of those there are the one with most epochs, which covers the others."""
    if plan_fingerprint is not None:
        return _sealed_plan(folder / f"plan-{plan_fingerprint}.json")
    sealed = [_sealed_plan(path) for path in sorted(folder.glob("plan-*.json"))]
    if not sealed:
        raise Refused("no sealed plan", where=str(folder), fix="make one with run_plan, or with `dflash plan`")
    return max(sealed, key=lambda plan: plan.num_epochs)


def _sealed_plan(path: Path) -> RunPlan:
    plan = load_record(path, RunPlan)
    if path.name != f"plan-{plan.fingerprint}.json":
        raise _damaged(path, f"its content has the fingerprint {plan.fingerprint}")
    return plan


def load_planned_epoch(folder: Path, plan: RunPlan, epoch: int) -> EpochManifest:
    """An epoch of a sealed plan; another order than the sealed one is refused."""
    manifest = load_epoch(folder, epoch)
    if manifest.digest() != plan.epochs[epoch].digest:
        raise _damaged(epoch_file(folder, epoch), f"it is not the epoch that plan {plan.fingerprint} sealed")
    return manifest


def _sealed(data: bytes) -> bytes:
    """The file with its hash in place, whatever stood there."""
    at = data.rfind(SEAL) + len(SEAL)
    before, after = data[:at], data[at + len(_UNSEALED) :]
    return before + hashlib.sha256(before + _UNSEALED + after).hexdigest().encode() + after


def _manifest(table: pa.Table, head: dict[str, int | str]) -> EpochManifest:
    if table.schema.names != SCHEMA.names:
        raise ValueError(f"columns {table.schema.names}")
    rows = table.combine_chunks()
    slots = int(head["slots_per_step"])
    shape = (rows.num_rows // slots, slots)

    def column(name: str) -> np.ndarray:
        return rows[name].to_numpy().reshape(shape)

    step, slot = np.divmod(np.arange(rows.num_rows), slots)
    if not (np.array_equal(rows["step"].to_numpy(), step) and np.array_equal(rows["slot"].to_numpy(), slot)):
        raise ValueError("rows are not in order of step and slot")
    if (rows["epoch"].to_numpy() != int(head["epoch"])).any():
        raise ValueError("rows of another epoch")
    lists = rows["sample_ids"].combine_chunks()
    return EpochManifest(
        epoch=int(head["epoch"]),
        num_corpus_samples=int(head["num_corpus_samples"]),
        slots_per_step=slots,
        token_budget=int(head["token_budget"]),
        layout=_layout(head),
        sample_ids=lists.flatten().to_numpy(),
        offsets=lists.offsets.to_numpy() - lists.offsets[0].as_py(),
        padded_length=column("padded_length"),
        num_tokens=column("num_tokens"),
        supervised_tokens=column("supervised_tokens"),
        cost=column("cost"),
        filler=column("filler"),
        dropped=np.frombuffer(base64.b64decode(str(head["dropped"])), dtype="<i8"),
    )


def _layout(head: dict[str, int | str]) -> Layout:
    return "documents" if head["layout"] == "documents" else "rows"


def _damaged(path: Path, why: str) -> ContractBroken:
    return ContractBroken(why, where=str(path), fix=_AGAIN)
