"""An epoch in parts on disk: of each part a manifest, and the ids that its samples have in the corpus.

    part-00000/sample-ids.npy     ids in the corpus, ascending
    part-00000/epoch-000.parquet  the part's manifest, whose ids count the part's samples from 0; written after the ids
    streamed.json                 seals the parts; written last

Every file is whole or absent.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.fingerprint import array_digest
from dflash_pipeline.contracts.manifest import EpochManifest, EpochSummary
from dflash_pipeline.store.files import set_aside, write_atomic
from dflash_pipeline.store.plans import load_epoch, load_or_set_aside, save_epoch
from dflash_pipeline.store.records import load_record, save_record

Ints = npt.NDArray[np.int64]

_SEAL = "streamed.json"
_IDS = "sample-ids.npy"
_AGAIN = "plan the stream again as it was planned"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSummary:
    """One part: how many samples, the digest of their ids, and the face of its manifest."""

    num_samples: int
    ids_digest: str
    epoch: EpochSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedEpoch:
    """An epoch in parts, sealed: the only place where steps of its parts are added up."""

    snapshot: str
    spec: BatchingSpec
    epoch: int
    samples_a_part: int
    parts: tuple[PartSummary, ...]

    @property
    def num_samples(self) -> int:
        return sum(part.num_samples for part in self.parts)

    @property
    def num_steps(self) -> int:
        return sum(part.epoch.num_steps for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """`sample_ids[manifest.sample_ids]` are ids in the corpus; the manifest's own count within the part."""

    sample_ids: Ints
    manifest: EpochManifest

    def summary(self) -> PartSummary:
        return PartSummary(
            num_samples=int(self.sample_ids.size),
            ids_digest=array_digest(self.sample_ids),
            epoch=self.manifest.summary(),
        )


def save_part(folder: Path, number: int, part: Part) -> None:
    """Write a part. It is there once its manifest is, which comes last."""
    data = io.BytesIO()
    np.save(data, part.sample_ids)
    write_atomic(_part_folder(folder, number) / _IDS, data.getvalue())
    save_epoch(_part_folder(folder, number), part.manifest)


def part_or_set_aside(folder: Path, number: int, epoch: int) -> Part | None:
    """The part if it is there and whole; damaged files are renamed out of the way. For a stage that can rebuild."""
    where = _part_folder(folder, number)
    manifest = load_or_set_aside(where, epoch)
    if manifest is None:
        return None
    try:
        return Part(sample_ids=_load_ids(where), manifest=manifest)
    except Refused:
        set_aside_ids(folder, number)
        return None


def set_aside_ids(folder: Path, number: int) -> None:
    path = _part_folder(folder, number) / _IDS
    if path.exists():
        set_aside(path)


def save_sealed(folder: Path, sealed: StreamedEpoch) -> None:
    save_record(folder / _SEAL, sealed)


def load_sealed(folder: Path) -> StreamedEpoch:
    """The seal of an epoch in parts; without it the epoch is not whole."""
    return load_record(folder / _SEAL, StreamedEpoch)


def load_part(folder: Path, sealed: StreamedEpoch, number: int) -> Part:
    """A part of a sealed epoch; one that is damaged, or another than was sealed, is refused."""
    where = _part_folder(folder, number)
    part = Part(sample_ids=_load_ids(where), manifest=load_epoch(where, sealed.epoch))
    if part.summary() != sealed.parts[number]:
        raise ContractBroken("it is not the part that was sealed", where=str(where), fix=_AGAIN)
    return part


def _load_ids(folder: Path) -> Ints:
    path = folder / _IDS
    try:
        ids: Ints = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Refused(f"no sample ids can be read: {error}", where=str(path), fix=_AGAIN) from None
    return ids


def _part_folder(folder: Path, part: int) -> Path:
    return folder / f"part-{part:05d}"
