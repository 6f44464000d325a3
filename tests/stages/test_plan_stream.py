"""A corpus planned in parts: each sample once, the same however it is cut into blocks and wherever it was stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.stages import scatter_lengths
from dflash_pipeline.stages.plan_stream import plan_stream
from dflash_pipeline.stages.scatter_lengths import LengthStream
from dflash_pipeline.store.files import INCOMPLETE
from dflash_pipeline.store.plan_parts import Part, load_part, load_sealed

NUM_SAMPLES = 9_000
A_PART = 1_000
SPEC = BatchingSpec(
    strategy="window",
    token_budget=400,
    slots_per_step=4,
    boundaries=(100,),
    cost=CostModel(quadratic_length=300.0, anchor_cost=0.5),
    seed=3,
)
TOKENS = 1 + np.arange(NUM_SAMPLES) ** 2 % 97


def corpus(*, tokens: np.ndarray = TOKENS, block: int = 2_500, num_samples: int | None = None) -> LengthStream:
    def blocks() -> Iterator[SampleLengths]:
        for at in range(0, tokens.size, block):
            of_block = tokens[at : at + block]
            yield SampleLengths(snapshot="stream", num_tokens=of_block, num_supervised=of_block // 2)

    size = tokens.size if num_samples is None else num_samples
    return LengthStream(snapshot="stream", num_samples=size, blocks=blocks)


def planned(out: Path, lengths: LengthStream | None = None, spec: BatchingSpec = SPEC, epoch: int = 2) -> list[Part]:
    folder, sealed = plan_stream(lengths or corpus(), spec, epoch=epoch, out=out, samples_a_part=A_PART)
    assert load_sealed(folder) == sealed
    return [load_part(folder, sealed, p) for p in range(len(sealed.parts))]


def contents(out: Path) -> dict[str, bytes]:
    """Every file, but what a killed process was about to write: no one reads that."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix != INCOMPLETE]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("strategy", ["shuffle", "window", "varlen"])
def test_every_sample_is_in_exactly_one_part_and_scheduled_once(tmp_path: Path, strategy: str) -> None:
    parts = planned(tmp_path, spec=replace(SPEC, strategy=strategy))
    assert len(parts) == 9
    ids = np.concatenate([part.sample_ids for part in parts])
    assert np.array_equal(np.sort(ids), np.arange(NUM_SAMPLES))
    real = [
        part.sample_ids[part.manifest.sample_ids][
            ~np.repeat(part.manifest.filler.ravel(), np.diff(part.manifest.offsets))
        ]
        for part in parts
    ]
    assert np.array_equal(np.sort(np.concatenate(real)), np.arange(NUM_SAMPLES))


def test_ids_lead_to_the_lengths_that_were_planned(tmp_path: Path) -> None:
    for part in planned(tmp_path):
        ids, manifest = part.sample_ids[part.manifest.sample_ids], part.manifest
        starts = manifest.offsets[:-1]
        assert np.array_equal(np.add.reduceat(TOKENS[ids], starts), manifest.num_tokens.ravel())
        assert np.array_equal(np.add.reduceat(TOKENS[ids] // 2, starts), manifest.supervised_tokens.ravel())
        assert np.array_equal(np.maximum.reduceat(TOKENS[ids], starts), manifest.padded_length.ravel())


def test_a_part_is_a_random_draw_of_its_share(tmp_path: Path) -> None:
    means = [part.sample_ids.mean() for part in planned(tmp_path)]
    sizes = [part.sample_ids.size for part in planned(tmp_path)]
    # Of 1,000 draws from 0 … 8,999 the mean deviates by 82, of their number by 30.
    assert all(abs(mean - (NUM_SAMPLES - 1) / 2) < 5 * 82 for mean in means)
    assert all(abs(size - A_PART) < 5 * 30 for size in sizes)
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("block", [1_000, 2_501, NUM_SAMPLES])
def test_the_size_of_blocks_changes_no_byte(tmp_path: Path, block: int) -> None:
    planned(tmp_path / "a")
    planned(tmp_path / "b", corpus(block=block))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("piece", [1, 700])
def test_the_size_of_pieces_and_a_second_level_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    planned(tmp_path / "a")
    monkeypatch.setattr(scatter_lengths, "PIECE", piece)
    monkeypatch.setattr(scatter_lengths, "MOST_STREAMS", 4)  # 9 parts: three files of three, then one each.
    planned(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_no_pass_opens_more_files_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_lengths, "MOST_STREAMS", 4)
    opened = []
    scatter = scatter_lengths._scatter
    monkeypatch.setattr(scatter_lengths, "_scatter", lambda *a: opened.append(len(a[-1])) or scatter(*a))
    planned(tmp_path)
    assert opened == [3, 3, 3, 3]


def test_a_corpus_of_one_part_is_planned_as_in_memory(tmp_path: Path) -> None:
    few = TOKENS[:1_400]
    (part,) = planned(tmp_path, corpus(tokens=few), epoch=1)
    samples = SampleLengths(snapshot="stream", num_tokens=few, num_supervised=few // 2)
    assert part.manifest.digest() == build_epoch_manifest(samples, SPEC, epoch=1).digest()
    assert np.array_equal(part.sample_ids, np.arange(1_400))


def test_epochs_share_samples_out_anew(tmp_path: Path) -> None:
    first, second = planned(tmp_path, epoch=0)[0], planned(tmp_path, epoch=1)[0]
    again = np.intersect1d(first.sample_ids, second.sample_ids).size
    assert again < 2 * A_PART / 9  # A random ninth comes again.


def test_unusable_samples_are_listed_by_their_part(tmp_path: Path) -> None:
    tokens = TOKENS.copy()
    tokens[[5, 77]], tokens[8_000] = 0, 401
    parts = planned(tmp_path, corpus(tokens=tokens), spec=replace(SPEC, overlong="drop"))
    dropped = np.concatenate([part.sample_ids[part.manifest.dropped] for part in parts])
    assert sorted(dropped.tolist()) == [5, 77, 8_000]


def test_a_sample_above_the_budget_is_refused_by_its_id(tmp_path: Path) -> None:
    tokens = TOKENS.copy()
    tokens[8_000] = 401
    with pytest.raises(Refused, match="sample 8000 has 401 tokens"):
        planned(tmp_path, corpus(tokens=tokens))
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("said", [NUM_SAMPLES - 1, NUM_SAMPLES + 1])
def test_a_stream_of_another_length_than_it_says_is_refused(tmp_path: Path, said: int) -> None:
    with pytest.raises(Refused, match=f"{NUM_SAMPLES} samples in the blocks of a corpus of {said}"):
        planned(tmp_path, corpus(num_samples=said))
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("change", [{"strategy": "sorted"}, {"strategy": "bucket"}, {"tail": "drop"}])
def test_what_looks_at_the_whole_corpus_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    with pytest.raises(Refused, match="cannot be planned in parts"):
        planned(tmp_path, spec=replace(SPEC, **change))


def test_parts_that_chance_could_leave_empty_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="parts of 999 samples"):
        plan_stream(corpus(), SPEC, epoch=0, out=tmp_path, samples_a_part=999)


def test_what_is_there_is_kept_and_the_corpus_not_read_again(tmp_path: Path) -> None:
    planned(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("part-*/*")}
    assert len(times) == 18

    def unread() -> Iterator[SampleLengths]:
        raise AssertionError("the corpus is read again")

    planned(tmp_path, replace(corpus(), blocks=unread))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("part-*/*")} == times


@pytest.mark.parametrize("name", ["sample-ids.npy", "epoch-002.parquet"])
def test_a_damaged_part_is_set_aside_and_made_again(tmp_path: Path, name: str) -> None:
    planned(tmp_path)
    before = contents(tmp_path)
    (path,) = tmp_path.glob(f"*/part-00004/{name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    planned(tmp_path)
    after = contents(tmp_path)
    kept = path.relative_to(tmp_path).as_posix() + ".damaged-1"
    assert after.pop(kept) == data
    assert after == before


def test_a_damaged_part_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    folder, sealed = plan_stream(corpus(), SPEC, epoch=2, out=tmp_path, samples_a_part=A_PART)
    np.save(folder / "part-00001" / "sample-ids.npy", np.load(folder / "part-00000" / "sample-ids.npy"))
    with pytest.raises(ContractBroken, match="not the part that was sealed"):
        load_part(folder, sealed, 1)


KILLED = """
from pathlib import Path
from tests.stages.test_plan_stream import planned
planned(Path({out!r}))
"""


@pytest.mark.parametrize(
    "order", ["kill:file.before-rename:7", "kill:manifest.after-write:4", "kill:file.after-rename:19"]
)
def test_a_killed_call_goes_on(tmp_path: Path, order: str) -> None:
    out = tmp_path / "killed"
    environment = os.environ | {"DFLASH_FAULT": order}
    ended = subprocess.run([sys.executable, "-c", KILLED.format(out=str(out))], env=environment, check=False)
    assert ended.returncode == -9
    made = {path: path.stat().st_mtime_ns for path in out.rglob("part-*/epoch-*.parquet")}
    assert made
    planned(out)
    planned(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert contents(out) == contents(tmp_path / "whole")
