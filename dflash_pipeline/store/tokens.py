"""Token shards: Arrow files that are mapped, not read. Written once, in order of sample id, then read by every rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.faults import fault_write

SCHEMA = pa.schema(
    [
        pa.field("conversation_id", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        # Start and end of each supervised span, one after the other.
        pa.field("spans", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
    ]
)
MOST_TOKENS_PER_SHARD = 2**30
"""Lists in a shard are addressed with 31 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """One file of token shards, as it was written."""

    name: str
    num_samples: int
    num_tokens: int


def write_shards(folder: Path, samples: Iterable[Sample], *, tokens_per_shard: int = 2**23) -> list[ShardFile]:
    """Write samples in the order given: the first is sample 0. A shard ends with the sample that fills it.

    A shard is in memory until it is written, twice at its end.

    `folder` exists, and becomes durable with its caller (`store.files.new_folder`).
    """
    if not 1 <= tokens_per_shard <= MOST_TOKENS_PER_SHARD:
        raise ContractBroken(
            f"{tokens_per_shard} tokens per shard", where=str(folder), fix=f"use 1 to {MOST_TOKENS_PER_SHARD}"
        )
    written = []
    for number, group in enumerate(_groups(samples, tokens_per_shard)):
        name = f"tokens-{number:05d}.arrow"
        _write_shard(folder / name, group)
        written.append(ShardFile(name=name, num_samples=len(group), num_tokens=sum(s.num_tokens for s in group)))
    return written


class TokenStore:
    """Samples by id, straight from mapped files: opening costs milliseconds, whatever the size.

    Arrays are views of the files and cannot be written to. Reads change nothing, so threads may share a store.
    """

    def __init__(self, folder: Path, shards: Sequence[str]) -> None:
        self._folder = folder
        self._names = tuple(shards)
        self._shards = [_Shard(folder / name) for name in shards]
        # _firsts[i] is the first sample id of shard i; the last entry is the number of samples.
        self._firsts = np.cumsum([0, *(shard.num_samples for shard in self._shards)])

    @property
    def num_samples(self) -> int:
        return int(self._firsts[-1])

    def input_ids(self, sample_id: int) -> npt.NDArray[np.int32]:
        """The tokens of a sample, without a copy."""
        shard, row = self._find(sample_id)
        return shard.input_ids(row)

    def supervised_mask(self, sample_id: int) -> npt.NDArray[np.bool_]:
        """For each token of a sample, whether it carries a loss."""
        shard, row = self._find(sample_id)
        mask = np.zeros(shard.input_ids(row).size, dtype=np.bool_)
        for start, end in shard.spans(row):
            mask[start:end] = True
        return mask

    def supervised_spans(self, sample_id: int) -> tuple[tuple[int, int], ...]:
        """Where those tokens are: from and up to (not with) these positions, ascending."""
        shard, row = self._find(sample_id)
        return tuple((start, end) for start, end in shard.spans(row).tolist())

    def conversation_id(self, sample_id: int) -> str:
        shard, row = self._find(sample_id)
        return shard.conversation_id(row)

    def place(self, sample_id: int) -> tuple[str, int]:
        """Where a sample lies: the shard's file name, and the row in it."""
        at, row = self._locate(sample_id)
        return self._names[at], row

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every sample, by sample id."""
        return np.concatenate([np.zeros(0, np.int64), *(shard.lengths() for shard in self._shards)])

    def num_supervised(self) -> npt.NDArray[np.int64]:
        """Supervised tokens of every sample, by sample id."""
        return np.concatenate([np.zeros(0, np.int64), *(shard.num_supervised() for shard in self._shards)])

    def catalogue(self) -> pa.Table:
        """One row a sample, in order of sample id: `sample_id`, `conversation_id`, `shard`, `row`, and its lengths."""
        counts = [shard.num_samples for shard in self._shards]
        return pa.table(
            {
                "sample_id": np.arange(self.num_samples),
                "conversation_id": pa.chunked_array([s.conversation_ids for s in self._shards], pa.string()),
                "shard": pa.array(np.repeat(np.array(self._names, dtype=object), counts), pa.string()),
                "row": np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)]),
                "num_tokens": self.lengths(),
                "num_supervised": self.num_supervised(),
            }
        )

    def _find(self, sample_id: int) -> tuple[_Shard, int]:
        at, row = self._locate(sample_id)
        return self._shards[at], row

    def _locate(self, sample_id: int) -> tuple[int, int]:
        if not 0 <= sample_id < self.num_samples:
            raise Refused(
                f"there is no sample {sample_id} among {self.num_samples}",
                where=str(self._folder),
                fix="use the snapshot that the manifest was made for",
            )
        at = int(np.searchsorted(self._firsts, sample_id, side="right")) - 1
        return at, int(sample_id - self._firsts[at])


class _Shard:
    """One mapped file, as flat arrays and where each sample begins in them."""

    def __init__(self, path: Path) -> None:
        batch = _mapped(path)
        self.conversation_ids = batch.column(0)
        ids, spans = batch.column(1), batch.column(2)
        self._ids: npt.NDArray[np.int32] = ids.values.to_numpy(zero_copy_only=True)
        self._id_offsets = ids.offsets.to_numpy(zero_copy_only=True)
        self._pairs: npt.NDArray[np.int32] = spans.values.to_numpy(zero_copy_only=True).reshape(-1, 2)
        self._span_offsets = spans.offsets.to_numpy(zero_copy_only=True)
        self.num_samples = batch.num_rows

    def input_ids(self, row: int) -> npt.NDArray[np.int32]:
        return self._ids[self._id_offsets[row] : self._id_offsets[row + 1]]

    def spans(self, row: int) -> npt.NDArray[np.int32]:
        return self._pairs[self._span_offsets[row] // 2 : self._span_offsets[row + 1] // 2]

    def conversation_id(self, row: int) -> str:
        return str(self.conversation_ids[row].as_py())

    def lengths(self) -> npt.NDArray[np.int64]:
        lengths: npt.NDArray[np.int64] = np.diff(self._id_offsets).astype(np.int64)
        return lengths

    def num_supervised(self) -> npt.NDArray[np.int64]:
        widths = self._pairs[:, 1].astype(np.int64) - self._pairs[:, 0]
        before = np.concatenate([[0], np.cumsum(widths)])
        counts: npt.NDArray[np.int64] = np.diff(before[self._span_offsets // 2])
        return counts


def _groups(samples: Iterable[Sample], tokens_per_shard: int) -> Iterator[list[Sample]]:
    group: list[Sample] = []
    tokens = 0
    for sample in samples:
        group.append(sample)
        tokens += sample.num_tokens
        if tokens >= tokens_per_shard:
            yield group
            group, tokens = [], 0
    if group:
        yield group


def _write_shard(path: Path, group: Sequence[Sample]) -> None:
    arrays = [
        pa.array([s.conversation_id for s in group], pa.string()),
        _list_array([s.input_ids for s in group], SCHEMA.field(1).type),
        _list_array([np.asarray(s.spans, np.int32).ravel() for s in group], SCHEMA.field(2).type),
    ]
    fault_write()
    # One batch a file: a sample's place is then an offset, not a search.
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))


def _list_array(rows: Sequence[npt.NDArray[np.int32]], kind: pa.DataType) -> pa.ListArray:
    offsets = np.cumsum([0, *(row.size for row in rows)])
    return pa.ListArray.from_arrays(offsets.astype(np.int32), np.concatenate(rows), type=kind)


def _mapped(path: Path) -> pa.RecordBatch:
    fix = "run the tokenising stage again: it sets a damaged snapshot aside and makes a new one"
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if reader.schema != SCHEMA or reader.num_record_batches != 1:
            raise Refused("an Arrow file, but not a token shard", where=str(path), fix=fix)
        return reader.get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise Refused(f"not readable as a token shard: {error}", where=str(path), fix=fix) from None
