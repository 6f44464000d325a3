"""Where a dry run's lengths come from: a file, the recipe's own snapshot, or the first rows of its sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.corpus import CorpusSnapshot, SampleLengths
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.ingest.tokenise import tokeniser
from dflash_pipeline.recipe import Data, Recipe
from dflash_pipeline.stages.conversations import conversations_name, reading_rules, source_files
from dflash_pipeline.stages.plan_files import read_lengths
from dflash_pipeline.stages.preflight.fault import noted
from dflash_pipeline.stages.preflight.sample import FILES, Effort, SourceSample, sample_source
from dflash_pipeline.stages.preflight.subject import Subject
from dflash_pipeline.stages.responses import SOURCE_ANSWERS
from dflash_pipeline.stages.tokens import open_tokens, rule_fingerprint, token_rule
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record

_ROWS, _SECONDS, _CHARACTERS = 6144, 20.0, 32 * 2**20
"""Of all sources together at most: so much is read and tokenised where nothing is ingested yet."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KnownLengths:
    """Lengths of the training samples, and of how many samples and tokens they are a part."""

    samples: SampleLengths
    origin: Literal["file", "snapshot", "sources"]
    says: str
    all_samples: int
    """With the validation side."""
    all_tokens: int

    @property
    def estimated(self) -> bool:
        return self.origin == "sources"


def known_lengths(recipe: Recipe, storage: Storage, file: Path | None, subject: Subject) -> KnownLengths:
    """The lengths of `file`; without one, those of the recipe's newest snapshot; without that, of its first rows.

    Refused, with what to give, when there is none of them.
    """
    if file is not None:
        return _of_file(file, recipe.data)
    if (snapshot := _usable_snapshot(recipe, storage, subject)) is not None:
        return _of_snapshot(storage, snapshot)
    return _of_sources(recipe, subject)


def _of_file(file: Path, data: Data) -> KnownLengths:
    samples = _within(read_lengths(file), data)
    if not samples.num_supervised.any():
        raise Refused(
            "no token of it is supervised", where=str(file), fix="give a column `supervised` with what carries a loss"
        )
    size, tokens = samples.num_tokens.size, int(samples.num_tokens.sum())
    on_training_side = 1 - data.validation_fraction
    all_carry = np.array_equal(samples.num_tokens, samples.num_supervised)
    return KnownLengths(
        samples=samples,
        origin="file",
        says=f"{size:,} training samples, by {file}" + (", each token supervised" if all_carry else ""),
        all_samples=round(size / on_training_side),
        all_tokens=round(tokens / on_training_side),
    )


def _within(samples: SampleLengths, data: Data) -> SampleLengths:
    """Samples of a file as ingestion would leave them: none above `data.max_length`."""
    longer = samples.num_tokens > data.max_length
    if not longer.any():
        return samples
    if data.overlong == "drop":
        tokens, supervised = samples.num_tokens[~longer], samples.num_supervised[~longer]
    else:
        tokens = np.minimum(samples.num_tokens, data.max_length)
        supervised = np.minimum(samples.num_supervised, tokens)
    if not tokens.size:
        raise Refused(
            f"all {longer.size} samples are longer than data.max_length {data.max_length}",
            where="data.overlong",
            fix="raise data.max_length, or truncate",
        )
    return SampleLengths(
        snapshot=fingerprint(lengths=tokens, supervised=supervised), num_tokens=tokens, num_supervised=supervised
    )


def _usable_snapshot(recipe: Recipe, storage: Storage, subject: Subject) -> CorpusSnapshot | None:
    """The recipe's newest snapshot, unless the recipe or its files by now say otherwise what would be in it."""
    record = storage.record(recipe.name, "token_sequences")
    if not record.exists():
        return None
    snapshot = load_record(record, CorpusSnapshot)
    if not (storage.snapshots / snapshot.fingerprint / "snapshot.json").exists():
        return None
    if recipe.responses.enabled == (snapshot.answers == SOURCE_ANSWERS):
        return None
    renderer = subject.target.renderer
    if renderer is not None and snapshot.rule != rule_fingerprint(renderer, token_rule(recipe.data)):
        return None
    with noted([]):  # Files that cannot be read are named by the preflight.
        return snapshot if snapshot.ingestion == conversations_name(recipe) else None
    return None


def _of_snapshot(storage: Storage, snapshot: CorpusSnapshot) -> KnownLengths:
    tokens = open_tokens(storage, snapshot)
    training = slice(0, snapshot.num_train_samples)
    return KnownLengths(
        samples=SampleLengths(
            snapshot=snapshot.fingerprint,
            num_tokens=tokens.lengths()[training],
            num_supervised=tokens.num_supervised()[training],
        ),
        origin="snapshot",
        says=f"of snapshot {snapshot.fingerprint}, which is of these files as they are",
        all_samples=snapshot.num_samples,
        all_tokens=snapshot.num_tokens,
    )


def _of_sources(recipe: Recipe, subject: Subject) -> KnownLengths:
    """First rows of every source, tokenised, and repeated until they are as many as the files seem to have."""
    read = _read(recipe.data, subject)
    drawn = [_repeated(sample, recipe.data) for sample in read if sample.lengths]
    if not drawn:
        raise _unknown(recipe, subject)
    tokens, supervised = np.concatenate(drawn, axis=1)
    training = max(1, round(tokens.size * (1 - recipe.data.validation_fraction)))
    # Every so-manyth is held out: the training side then has the same law.
    chosen = np.linspace(0, tokens.size - 1, training).round().astype(np.int64)
    num_rows = sum(sample.num_rows for sample in read)
    return KnownLengths(
        samples=SampleLengths(
            snapshot=fingerprint(lengths=tokens, supervised=supervised),
            num_tokens=tokens[chosen],
            num_supervised=supervised[chosen],
        ),
        origin="sources",
        says=f"estimated by the first {num_rows:,} rows of the sources, which seem to hold {tokens.size:,} samples"
        + (", with the answers of the files: the target's own will differ" if recipe.responses.enabled else ""),
        all_samples=int(tokens.size),
        all_tokens=int(tokens.sum()),
    )


def _read(data: Data, subject: Subject) -> list[SourceSample]:
    if subject.target.renderer is None:
        return []
    tokenise, limits = tokeniser(subject.target.renderer, token_rule(data)), reading_rules(data).limits
    parts = FILES * len(data.sources)
    effort = Effort(
        rows=min(_ROWS // parts or 1, data.max_rows or _ROWS),
        seconds=_SECONDS / parts,
        characters=_CHARACTERS // parts,
    )
    read: list[SourceSample] = []
    for source in source_files(data):
        with noted([]):  # The preflight names the fault.
            read.append(sample_source(source, limits, effort, tokenise))
    return read


def _repeated(sample: SourceSample, data: Data) -> npt.NDArray[np.int64]:
    """[2, samples]: lengths and supervised tokens, as many as the whole source would give."""
    lengths = np.array(sample.lengths, dtype=np.int64).T
    share = lengths.shape[1] / max(sample.num_taken, 1)
    wanted = max(1, round(_num_taken(sample, data) * share * sample.weight))
    # Each as often as any other, to within one.
    return lengths[:, np.arange(wanted) * lengths.shape[1] // wanted]


def _num_taken(sample: SourceSample, data: Data) -> int:
    """Rows that are taken: counted where all were read, else by the size of the files and of the first rows' text."""
    if sample.whole:
        return sample.num_taken
    by_size = sample.num_bytes * sample.num_taken // max(sample.num_characters, 1)
    return by_size if data.max_rows is None else min(by_size, data.max_rows * sample.num_files)


def _unknown(recipe: Recipe, subject: Subject) -> Refused:
    fix = "correct data.sources, or give --lengths FILE (.npy, or .parquet with a column `length`) for a dry run"
    faults = (*subject.source_refusals, *(subject.target.faults if subject.target.renderer is None else ()))
    if faults:
        return Refused(f"no lengths are known: {faults[0].what}", where=faults[0].where, fix=fix)
    where = ", ".join(str(source.path) for source in recipe.data.sources)
    return Refused("no lengths are known: the first rows give no sample", where=where, fix=fix)
