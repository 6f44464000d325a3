"""Forensics of a run: each event with its steps, slots, samples, their texts, sources and other epochs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.stages.forensics import look_into
from dflash_pipeline.stages.forensics_pages import event_page, events_markdown, page_name
from dflash_pipeline.stages.run_files import read_run
from dflash_pipeline.stages.sample_losses import samples_losses
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import save_record
from dflash_pipeline.store.tokens import TokenStore
from dflash_pipeline.training.event_log import EventLog
from tests.stages.spiky_run import spiky_run, ten_rows
from tests.training.test_event_log import SPIKE, STEP
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import plan_of, train, write_toy


@pytest.fixture(scope="module")
def spiky(tmp_path_factory):
    """The storage, and the conversation ids of its samples."""
    folder = tmp_path_factory.mktemp("spiky")
    storage = Storage(root=folder / "storage")
    return storage, spiky_run(ten_rows(folder), storage)


@pytest.fixture(scope="module")
def found(spiky):
    storage, _ = spiky
    return look_into(storage, read_run(storage, "r1"))


def test_every_event_has_its_steps_and_slots(spiky, found):
    storage, _ = spiky
    assert [(one.event.start, one.event.cause) for one in found] == [(101, "data"), (150, "data"), (190, None)]
    [step] = found[1].steps
    assert (step.told.epoch, step.told.step, step.told.bucket, step.told.loss) == (1, 1, 1, 9.0)
    manifest = _manifests(storage)[1]
    assert [(slot.slot, slot.sample_ids) for slot in step.slots] == [
        (batch.slot, tuple(batch.sample_ids)) for batch in manifest.step_batches(1) if not batch.filler
    ]


def test_samples_have_their_text_and_source(spiky, found):
    _, ids = spiky
    samples = {sample.sample_id: sample for sample in found[0].samples}
    assert samples.keys() == {2, 4}
    assert all(sample.at_fault for sample in samples.values())
    for number, sample in samples.items():
        assert sample.conversation_id == ids[number]
        assert Path(sample.file).name == "rows.jsonl"
        assert sample.line == int(ids[number].removeprefix("row-")) + 1
        row = ids[number].removeprefix("row-")
        assert f"What is {row}?" in sample.text
        assert f"It is {row}." in sample.supervised_text
        assert "What is" not in sample.supervised_text
        assert sample.num_supervised < sample.num_tokens
    assert [sample.at_fault for sample in found[2].samples] == [False]


def test_samples_are_followed_through_every_epoch(spiky, found):
    storage, _ = spiky
    for event in found:
        for sample in event.samples:
            expected = []
            for epoch, manifest in enumerate(_manifests(storage)):
                for step in range(manifest.num_steps):
                    for batch in manifest.step_batches(step):
                        if sample.sample_id in batch.sample_ids and not batch.filler:
                            others = tuple(int(i) for i in batch.sample_ids if i != sample.sample_id)
                            number = step + 1 + (0 if epoch == 0 else _manifests(storage)[0].num_steps)
                            expected.append((epoch, step, batch.slot, others, number, float(number)))
            assert len(expected) == 2
            assert [(m.epoch, m.step, m.slot, m.neighbours, m.global_step, m.loss) for m in sample.meetings] == expected


def test_a_filler_is_no_meeting(tmp_path):
    """Twelve slots for ten samples: two micro-batches stand in the step once more, with weight zero."""
    storage = Storage(root=tmp_path / "storage")
    spiky_run(ten_rows(tmp_path), storage, slots_per_step=12)
    assert all(manifest.filler.sum() >= 2 for manifest in _manifests(storage))
    for event in look_into(storage, read_run(storage, "r1")):
        assert [[meeting.epoch for meeting in sample.meetings] for sample in event.samples] == [[0, 1]] * len(
            event.samples
        )


def test_a_run_whose_plan_and_snapshot_are_gone_keeps_what_was_told(spiky, tmp_path):
    storage, _ = spiky
    bare = Storage(root=tmp_path / "storage")
    shutil.copytree(storage.runs, bare.runs)
    found = look_into(bare, read_run(bare, "r1"))
    assert [[sample.sample_id for sample in one.samples] for one in found] == [[2, 4], [2, 4], [7]]
    assert all(s.text is None and s.meetings == () and s.conversation_id is None for one in found for s in one.samples)
    assert "its snapshot is gone" in event_page("r1", found[0])


def test_no_event_is_nothing_to_look_into(tmp_path):
    storage = Storage(root=tmp_path / "storage")
    EventLog(storage.runs / "quiet" / "events.jsonl").tell(STEP)
    assert look_into(storage, read_run(storage, "quiet")) == ()
    assert events_markdown("quiet", ()) == "No loss event."


def test_the_worst_events_are_looked_into_when_there_are_many(tmp_path):
    storage = Storage(root=tmp_path / "storage")
    log = EventLog(storage.runs / "r" / "events.jsonl")
    for number in range(40):
        severity = "alert" if number >= 25 else "warn"
        log.tell(replace(SPIKE, global_step=20 * (number + 1), severity=severity, sample_ids=(number,)))
    found = look_into(storage, read_run(storage, "r"))
    assert [one.event.start for one in found] == [20 * (n + 1) for n in (*range(5), *range(25, 40))]


def test_pages_hold_foreign_text_as_text(spiky, found):
    page = event_page("r1", found[0])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page_name(found[0]) == "event-0000101.html"
    text = events_markdown("r1", found)
    assert len(text) < 10_000
    hostile = next(line for line in text.split("\n") if "script" in line)
    assert hostile.count("`") == 4, "the sample's own marks end the code"


def test_losses_of_samples_add_up_to_the_loss_of_their_step(tmp_path):
    """A learning rate of 0: the weights of every step are those of the checkpoint."""
    storage = Storage(root=tmp_path / "storage")
    toy = write_toy(storage.snapshots / "toy", lengths=LENGTHS, spec=SPEC, epochs=1)
    toy = replace(toy, settings=replace(toy.settings, learning_rate=0.0), max_steps=4)
    shutil.copytree(storage.snapshots / "toy" / "plans", storage.plans)
    run_dir = storage.runs / "toyrun"
    steps = train(toy, run_dir=run_dir).recorder.steps
    log = EventLog(run_dir / "events.jsonl")
    for step in steps:
        log.tell(step)
    plan = plan_of(toy)
    save_record(run_dir / "run.json", RunRecord(run="toyrun", plan=plan.fingerprint, target="toy", total_steps=1))
    save_record(run_dir / "launch.json", toy)
    save_record(storage.snapshots / "toy" / "snapshot.json", _snapshot(toy))
    batches = [b for b in next(iter(_manifests(storage))).step_batches(2) if not b.filler]
    samples = [int(i) for b in batches for i in b.sample_ids]
    losses, checkpoint = samples_losses(
        storage, read_run(storage, "toyrun"), dict.fromkeys(samples, 0), before=steps[-1].global_step
    )
    assert checkpoint.startswith("step_")
    assert losses.keys() == set(samples)
    weights = {sample: _weight(toy, storage, sample) for sample in samples}
    mean = sum(losses[s] * weights[s] for s in samples) / sum(weights.values())
    assert mean == pytest.approx(steps[2].loss, rel=1e-5)
    assert len({round(loss, 3) for loss in losses.values()}) > 1

    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(Refused, match="no checkpoint is whole"):
        samples_losses(storage, read_run(storage, "toyrun"), {0: 0}, before=9)


def test_the_command_prints_them(dflash_spikes):
    document, text = dflash_spikes
    assert [len(one["samples"]) for one in document["forensics"]] == [2, 2, 1]
    assert document["forensics"][0]["event"]["shared_sample_ids"] == [2, 4]
    assert "(at fault): row-" in text
    assert "due to data: other epochs have a spike with samples 2, 4" in text
    assert "\x1b" not in text


@pytest.fixture
def dflash_spikes(spiky, capfd):
    from dflash_pipeline.cli import main

    storage, _ = spiky
    answers = []
    for options in (["--json"], []):
        capfd.readouterr()
        with pytest.raises(SystemExit):
            main(["spikes", "r1", "--full", "--storage", str(storage.root), *options])
        answers.append(capfd.readouterr().out)
    return json.loads(answers[0]), answers[1]


def _manifests(storage):
    from dflash_pipeline.store.plans import load_epoch

    [folder] = storage.plans.iterdir()
    return [load_epoch(folder, epoch) for epoch in range(len(list(folder.glob("epoch-*.parquet"))))]


def _weight(toy, storage, sample):
    """Of all the sample's slots, by the formula: exp(-(slot - 1) / decay) to the first slot without supervision."""
    import math

    from dflash_pipeline.model.anchors import sample_anchors

    tokens = TokenStore(storage.snapshots / "toy", toy.shards)
    mask = tokens.supervised_mask(sample)
    settings = toy.settings
    anchors = sample_anchors(
        mask,
        share=settings.anchor_share,
        most=settings.anchors_per_sample,
        seed=settings.seed,
        epoch=0,
        sample_id=sample,
    )
    return sum(
        math.exp(-(slot - 1) / settings.objective.decay)
        for anchor in anchors
        for slot in range(1, toy.drafter.block_size)
        if anchor + slot < mask.size and mask[anchor : anchor + slot + 1].all()
    )


def _snapshot(toy):
    tokens = TokenStore(_folder(toy), toy.shards)
    return CorpusSnapshot(
        fingerprint="toy",
        ingestion="toy",
        tokenizer="toy",
        template="toy",
        answers="source",
        max_length=64,
        num_train_samples=tokens.num_samples,
        num_validation_samples=0,
        num_tokens=int(tokens.lengths().sum()),
        num_supervised_tokens=int(tokens.num_supervised().sum()),
        dropped=(),
        shards=toy.shards,
    )


def _folder(toy):
    return Path(toy.snapshot_dir)
