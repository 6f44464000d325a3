"""Lengths of any number of samples dealt to files, one a part, without holding more than a piece of them.

Which part a sample belongs to is a function of its key, so a part is a random draw of the corpus. No pass writes to
more than `MOST_STREAMS` files: with more parts than that, samples go to files of several parts first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.planning.compiled import compiled
from dflash_pipeline.planning.keys import key_of, share_of
from dflash_pipeline.store.files import INCOMPLETE, fsync_folder, remove_leftovers

Ints = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]

MOST_STREAMS = 256
"""Files written to at a time: as many as the processor keeps apart, and far fewer than a process may open."""
RECORD = np.dtype([("id", "<i8"), ("num_tokens", "<i4"), ("num_supervised", "<i4")])
PIECE = 2**20
"""Samples scattered, or read back, at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthStream:
    """A corpus as blocks of lengths, in order of sample id. How it is cut into blocks changes nothing."""

    snapshot: str
    """Names the content: the same lengths under the same name, in every call."""
    num_samples: int
    blocks: Callable[[], Iterable[SampleLengths]]
    """Each call begins anew at sample 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """`count` equal shares of the keys that `base` (a `stream`) gives to sample ids."""

    base: np.uint64
    count: int

    def are_of(self, ids: Ints, part: int) -> bool:
        """Whether the ids ascend and all belong to the part."""
        return bool(_are_of(ids, self.base, self.count, part))


def scatter_corpus(lengths: LengthStream, spec: BatchingSpec, parts: Parts, scratch: Path) -> None:
    """One file a part, in order of sample id; in two levels when there are more parts than streams."""
    scratch.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(scratch)
    temporary = scratch.with_name(f".{scratch.name}.{os.getpid()}{INCOMPLETE}")
    temporary.mkdir()
    try:
        a_file = -(-parts.count // MOST_STREAMS)
        groups = [temporary / f"group-{g:05d}" for g in range(0, parts.count, a_file)] if a_file > 1 else []
        _scatter(
            _records(lengths, spec), parts, 0, a_file, groups or [part_file(temporary, p) for p in range(parts.count)]
        )
        for g, group in enumerate(groups):
            of_group = range(g * a_file, min((g + 1) * a_file, parts.count))
            _scatter(_pieces(group), parts, of_group.start, 1, [part_file(temporary, p) for p in of_group])
            group.unlink()
        temporary.rename(scratch)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(scratch.parent)


def _records(lengths: LengthStream, spec: BatchingSpec) -> Iterator[Records]:
    first = 0
    for block in lengths.blocks():
        _check_lengths(block.num_tokens, first, spec)
        for at in range(0, block.num_tokens.size, PIECE):
            tokens = block.num_tokens[at : at + PIECE]
            records = np.empty(tokens.size, dtype=RECORD)
            records["id"] = np.arange(first, first + tokens.size)
            records["num_tokens"] = tokens
            records["num_supervised"] = block.num_supervised[at : at + PIECE]
            yield records
            first += tokens.size
    if first != lengths.num_samples:
        raise Refused(
            f"{first} samples in the blocks of a corpus of {lengths.num_samples}",
            where=f"lengths of snapshot {lengths.snapshot}",
            fix="give as many lengths as the stream says it has",
        )


def _check_lengths(tokens: Ints, first: int, spec: BatchingSpec) -> None:
    most = spec.token_budget if spec.overlong == "refuse" else np.iinfo(np.int32).max
    if tokens.max() > most:
        at = int((tokens > most).argmax())
        raise Refused(
            f"sample {first + at} has {tokens[at]} tokens, above {most}",
            where="batching.token_budget",
            fix="raise the budget, lower data.max_length so that samples are truncated, or set batching.overlong: drop",
        )


def _scatter(pieces: Iterable[Records], parts: Parts, first: int, a_file: int, files: list[Path]) -> None:
    """Append each record to the file of its part; file f takes parts `first + f * a_file` and the `a_file - 1` next."""
    streams = [path.open("wb", buffering=2**18) for path in files]
    try:
        for records in pieces:
            grouped = np.empty_like(records)
            ends = _group(records, grouped, parts.base, parts.count, first, a_file, len(files))
            for file, out in enumerate(streams):
                out.write(grouped[ends[file] : ends[file + 1]].tobytes())
        for out in streams:
            out.flush()
            os.fsync(out.fileno())
    finally:
        for out in streams:
            out.close()


@compiled
def _group(
    records: Records, grouped: Records, base: np.uint64, num_parts: int, first: int, a_file: int, num_files: int
) -> Ints:
    """Write `records` to `grouped` file by file, stably; where each file's begin, and where the last one's end."""
    file_of, ends = np.empty(records.size, dtype=np.int64), np.zeros(num_files + 1, dtype=np.int64)
    for i in range(records.size):
        file_of[i] = (share_of(key_of(base, records[i].id), num_parts) - first) // a_file
        ends[file_of[i] + 1] += 1
    ends = np.cumsum(ends)
    cursor = ends[:-1].copy()
    for i in range(records.size):
        grouped[cursor[file_of[i]]] = records[i]
        cursor[file_of[i]] += 1
    return ends


@compiled
def _are_of(ids: Ints, base: np.uint64, num_parts: int, part: int) -> bool:
    """Whether the ids ascend and all belong to the part."""
    for i in range(ids.size):
        if share_of(key_of(base, ids[i]), num_parts) != part or (i and ids[i] <= ids[i - 1]):
            return False
    return True


def _pieces(file: Path) -> Iterator[Records]:
    with file.open("rb") as stream_of_records:
        while (records := np.fromfile(stream_of_records, dtype=RECORD, count=PIECE)).size:
            yield records


def part_file(scratch: Path, part: int) -> Path:
    return scratch / f"part-{part:05d}.records"
