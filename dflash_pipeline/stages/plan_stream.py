"""Planning an epoch of a corpus whose lengths do not fit in memory: bounded memory, whatever the number of samples.

The first pass scatters lengths to parts, random draws of the corpus of about `samples_a_part`. The second plans each
part by itself with `build_epoch_manifest`. So a part is an epoch of its own samples, numbered `0 … n - 1` in order of
id, beside the list of their ids in the corpus; the epoch is its parts one after another, and a sample is in exactly
one. A part's last step is filled up, which costs an epoch less than one step a part.

A call that was interrupted goes on at the first part that is not there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.planning.keys import Purpose, stream
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.stages.scatter_lengths import RECORD, LengthStream, Parts, part_file, scatter_corpus
from dflash_pipeline.store.plan_parts import (
    Ints,
    Part,
    PartSummary,
    StreamedEpoch,
    part_or_set_aside,
    save_part,
    save_sealed,
    set_aside_ids,
)

SAMPLES_A_PART = 4_000_000
LEAST_SAMPLES_A_PART = 1_000
"""With fewer, chance could leave a part without a sample."""
STRATEGIES = ("shuffle", "window", "varlen")
"""Those whose epochs are alike whether a corpus is planned whole or by random parts."""


def plan_stream(
    lengths: LengthStream, spec: BatchingSpec, *, epoch: int, out: Path, samples_a_part: int = SAMPLES_A_PART
) -> tuple[Path, StreamedEpoch]:
    """Plan an epoch part by part below `out`; its folder, and its seal. What is there already is checked and kept.

    The corpus is read once, and not at all when each part is there. Refuses strategies that order the whole corpus,
    `tail: drop`, samples that the spec wants refused, and a stream that is not as long as it says.
    """
    _check(spec, samples_a_part)
    folder = out / fingerprint(
        snapshot=lengths.snapshot, samples=lengths.num_samples, spec=spec.fingerprint, epoch=epoch, part=samples_a_part
    )
    parts = Parts(
        base=stream(spec.seed, epoch, Purpose.SAMPLES), count=max(1, round(lengths.num_samples / samples_a_part))
    )
    made = {p: found for p in range(parts.count) if (found := _found(folder, parts, p, epoch)) is not None}
    missing = [p for p in range(parts.count) if p not in made]
    scratch = folder / "scattered"
    if not all(part_file(scratch, p).exists() for p in missing):
        shutil.rmtree(scratch, ignore_errors=True)
        scatter_corpus(lengths, spec, parts, scratch)
    for p in missing:
        made[p] = _make_part(folder, p, _read(part_file(scratch, p), lengths.snapshot), spec, epoch)
        part_file(scratch, p).unlink()
    shutil.rmtree(scratch, ignore_errors=True)
    sealed = StreamedEpoch(
        snapshot=lengths.snapshot,
        spec=spec,
        epoch=epoch,
        samples_a_part=samples_a_part,
        parts=tuple(made[p] for p in range(parts.count)),
    )
    if sealed.num_samples != lengths.num_samples:
        raise ContractBroken(
            f"parts of {sealed.num_samples} samples in all for a corpus of {lengths.num_samples}",
            where=str(folder),
            fix="move the folder away and plan again",
        )
    save_sealed(folder, sealed)
    return folder, sealed


def _check(spec: BatchingSpec, samples_a_part: int) -> None:
    if spec.strategy not in STRATEGIES or spec.tail != "fill":
        raise Refused(
            f"strategy {spec.strategy} with tail {spec.tail} cannot be planned in parts",
            where="batching",
            fix=f"use {', '.join(STRATEGIES)} with tail: fill, which do not look at the whole corpus",
        )
    if samples_a_part < LEAST_SAMPLES_A_PART:
        raise Refused(
            f"parts of {samples_a_part} samples", where="samples_a_part", fix=f"use at least {LEAST_SAMPLES_A_PART}"
        )


def _found(folder: Path, parts: Parts, number: int, epoch: int) -> PartSummary | None:
    """The part if it is there, whole, and of the samples that belong to it."""
    part = part_or_set_aside(folder, number, epoch)
    if part is None:
        return None
    if part.sample_ids.size != part.manifest.num_corpus_samples or not parts.are_of(part.sample_ids, number):
        set_aside_ids(folder, number)
        return None
    return part.summary()


def _make_part(
    folder: Path, number: int, ids_and_samples: tuple[Ints, SampleLengths], spec: BatchingSpec, epoch: int
) -> PartSummary:
    ids, samples = ids_and_samples
    part = Part(sample_ids=ids, manifest=build_epoch_manifest(samples, spec, epoch=epoch))
    save_part(folder, number, part)
    return part.summary()


def _read(file: Path, snapshot: str) -> tuple[Ints, SampleLengths]:
    """A part's ids in the corpus, and its samples by their number in the part."""
    records = np.fromfile(file, dtype=RECORD)
    samples = SampleLengths(
        snapshot=snapshot,
        num_tokens=records["num_tokens"].astype(np.int64),
        num_supervised=records["num_supervised"].astype(np.int64),
    )
    return records["id"].astype(np.int64), samples
