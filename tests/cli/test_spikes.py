"""`dflash spikes`: every form of a series, a run's own events, and input of many wrong kinds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.records import save_record
from dflash_pipeline.training.event_log import EventLog
from tests.training.test_event_log import SPIKE, STEP
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import write_toy

QUIET = [round(0.95 + 0.04 * math.sin(step), 4) for step in range(60)]
LOSSES = [*QUIET[:40], 4.6, *QUIET[40:44], 6.4, *QUIET[44:], "NaN"]
SPIKES = [40, 45, 60 + 2]


def rows(first_step=0):
    return [
        {"step": first_step + n, "loss": loss, "bucket": 7, "epoch": n // 45, "sample_ids": [n % 5, 100 + n % 5]}
        for n, loss in enumerate(LOSSES)
    ]


def csv(rows):
    ids = lambda row: " ".join(map(str, row["sample_ids"]))  # noqa: E731
    lines = [f"{row['step']},{row['loss']},{row['bucket']},{row['epoch']},{ids(row)}" for row in rows]
    return "step,loss,bucket,epoch,sample_ids\n" + "\n".join(lines)


def columns(rows):
    return json.dumps({name: [row[name] for row in rows] for name in rows[0]})


FORMS = {
    "columns": columns,
    "list of rows": json.dumps,
    "lines": lambda rows: "\n".join(map(json.dumps, rows)) + "\n\n",
    "csv": csv,
    "csv of another system": lambda rows: "\ufeff" + csv(rows).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(dflash, tmp_path, form):
    (tmp_path / "losses").write_text(FORMS[form](rows(first_step=500)), encoding="utf-8")
    found = dflash("spikes", "--losses", tmp_path / "losses", "--json").document
    assert found["flagged"] == [500 + step for step in SPIKES]
    spike, last = found["events"]
    assert (spike["start"], spike["end"], spike["peak_step"], spike["peak_loss"]) == (540, 545, 545, 6.4)
    assert (spike["kind"], spike["severity"], spike["cause"], spike["epochs"]) == ("spike", "alert", "data", [0, 1])
    assert spike["shared_sample_ids"] == [0, 100]
    assert (last["peak_step"], last["peak_loss"], last["cause"]) == (562, "NaN", None)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"loss": LOSSES, "comment": "more is allowed"}),
        json.dumps(LOSSES),
        json.dumps([*LOSSES[:-1], None]),
        json.dumps([*LOSSES[:-1], math.inf]),
        "\n".join(json.dumps({"loss": loss}) for loss in LOSSES),
        "loss\n" + "\n".join(map(str, LOSSES)),
        "bucket,loss\n" + "\n".join(f",{loss}" for loss in LOSSES[:-1]) + "\n3,\n",
    ],
)
def test_losses_alone_count_from_step_0(dflash, tmp_path, text):
    (tmp_path / "losses").write_text(text, encoding="utf-8")
    assert dflash("spikes", "--losses", tmp_path / "losses", "--json").document["flagged"] == SPIKES


def test_buckets_have_bands_of_their_own(dflash, tmp_path):
    losses, buckets = [1.0, 2.0] * 30, [-3, 10**12] * 30
    together = {"loss": [*losses, 2.0], "bucket": [*buckets, -3]}
    (tmp_path / "losses.json").write_text(json.dumps(together))
    assert dflash("spikes", "--losses", tmp_path / "losses.json", "--json").document["flagged"] == [60]
    (tmp_path / "losses.json").write_text(json.dumps({"loss": together["loss"]}))
    assert dflash("spikes", "--losses", tmp_path / "losses.json", "--json").document["flagged"] == []


def test_slow_rises_and_levels_are_events_and_not_flagged(dflash, tmp_path):
    noise = np.exp(np.random.default_rng(0).normal(0, 0.03, 400))
    noise[100:160] *= np.linspace(1, 2, 60)
    noise[280:] *= 3
    (tmp_path / "losses.json").write_text(json.dumps(noise.tolist()))
    found = dflash("spikes", "--losses", tmp_path / "losses.json", "--json").document
    assert found["flagged"] == []
    assert [event["kind"] for event in found["events"]] == ["slow rise", "level shift"]
    assert 100 < found["events"][0]["start"] < 120
    assert found["events"][1]["start"] == 280


def test_text_for_a_person(dflash, tmp_path):
    (tmp_path / "losses.json").write_text(json.dumps(rows()))
    ran = dflash("spikes", "--losses", tmp_path / "losses.json")
    assert ran.code == 0
    assert ran.out == (
        "spike (alert) at steps 40-45: peak 6.4 at 45\n"
        "  due to data: other epochs have a spike with samples 0, 100\n"
        "spike (alert) at step 62: peak nan at 62\n"
        "3 spikes, 2 events\n"
    )


def test_a_run(dflash, tmp_path):
    """The first attempt lost its steps from 30 on: what it told of them is not counted."""
    log = EventLog(tmp_path / "storage" / "runs" / "r1" / "events.jsonl")
    for step, spike in ((20, True), (21, False), (30, True), (40, True)):
        log.tell(replace(STEP, global_step=step, spike=spike))
        if spike:
            log.tell(replace(SPIKE, global_step=step, sample_ids=(step, 5)))
    log.end("failed")
    log = EventLog(tmp_path / "storage" / "runs" / "r1" / "events.jsonl")
    for step in (30, 31):
        log.tell(replace(STEP, global_step=step, attempt=2))
    log.tell(replace(SPIKE, global_step=31, rule="slow rise", severity="warn", sample_ids=(7,)))
    log.tell(replace(STEP, global_step=90, loss=math.nan))
    log.tell(replace(SPIKE, global_step=90, loss=math.nan, expected_loss=math.nan, epoch=1, sample_ids=(5,)))

    found = dflash("spikes", "r1", "--storage", tmp_path / "storage", "--json").document
    assert found["run"] == "r1"
    assert found["flagged"] == [20, 90]
    assert [(event["kind"], event["start"]) for event in found["events"]] == [
        ("spike", 20),
        ("slow rise", 31),
        ("spike", 90),
    ]
    assert [event["shared_sample_ids"] for event in found["events"]] == [[5], [], [5]]
    assert [event["severity"] for event in found["events"]] == ["alert", "warn", "alert"]


def test_a_run_knows_its_corpus_by_its_plan(dflash, tmp_path):
    """Three of forty samples a step: one in two spikes is chance, as long as the plan is there to say so."""
    toy = write_toy(tmp_path / "storage", lengths=LENGTHS, spec=SPEC, epochs=1)
    run_dir = tmp_path / "storage" / "runs" / "r1"
    log = EventLog(run_dir / "events.jsonl")
    for step, samples in ((1, (1, 2, 3)), (50, (3, 4, 5))):
        log.tell(replace(SPIKE, global_step=step, epoch=step // 50, sample_ids=samples))

    def causes():
        found = dflash("spikes", "r1", "--storage", tmp_path / "storage", "--json").document
        return [event["cause"] for event in found["events"]]

    assert causes() == ["data", "data"]
    save_record(run_dir / "run.json", RunRecord(run="r1", plan=toy.plan, target="t", total_steps=9))
    assert causes() == [None, None]


WRONG = {
    "empty": b"",
    "blank": b" \n \n",
    "empty list": b"[]",
    "no losses": b'{"loss": []}',
    "other columns": b'{"train_loss": [1, 2]}',
    "other CSV": b"step,value\n1,2\n",
    "numbers without a name": b"0.95\n0.96\n",
    "a number": b"5",
    "binary": bytes(range(256)) * 4,
    "cut": b'{"loss": [1, 2',
    "deep": b"[" * 100_000,
    "word": b'["high"]',
    "flag": b"[true]",
    "object as a loss": b'{"loss": [{"a": 1}]}',
    "list in a list": b"[[1, 2]]",
    "huge whole number": b"[1" + b"0" * 5000 + b"]",
    "columns of two sizes": b'{"loss": [1, 2], "bucket": [0]}',
    "a column that is none": b'{"loss": [1, 2], "bucket": 0}',
    "bucket with a fraction": b'{"loss": [1, 2], "bucket": [0, 0.5]}',
    "bucket beyond 64 bits": b'{"loss": [1], "bucket": [18446744073709551616]}',
    "steps that fall": b'{"loss": [1, 2], "step": [5, 4]}',
    "a step twice": b"loss,step\n1,5\n2,5\n",
    "steps on some rows": b'[{"loss": 1, "step": 5}, {"loss": 2}]',
    "samples that are a word": b'{"loss": [1], "sample_ids": ["a b"]}',
    "samples that are a number": b'{"loss": [1], "sample_ids": [5]}',
    "line that is none": b'{"loss": 1}\n{"loss": \n',
    "line without a loss": b'{"loss": 1}\n{"step": 2}\n',
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_series_are_refused_in_a_sentence(dflash, tmp_path, name):
    (tmp_path / "losses").write_bytes(WRONG[name])
    ran = dflash("spikes", "--losses", tmp_path / "losses", "--json")
    assert ran.code == 2
    error = ran.document["error"]
    assert str(tmp_path / "losses") in error["where"]
    assert error["what"]
    assert error["fix"]


@pytest.mark.parametrize("path", ["nosuch", ".", "a\0b", "x" * 300, "/dev/zero"])
def test_paths_that_are_no_series(dflash, tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dflash_pipeline.stages.loss_series.MOST_BYTES", 1000)
    ran = dflash("spikes", "--losses", path, "--json")
    assert ran.code == 2
    assert "defect" not in ran.document["error"]["where"]


@pytest.mark.parametrize(
    "arguments", [[], ["r1", "--losses", "x.json"], ["nosuch"], [".."], ["../x"], ["a\0b"], ["x" * 300]]
)
def test_neither_a_run_nor_a_file(dflash, tmp_path, arguments):
    ran = dflash("spikes", *arguments, "--storage", tmp_path / "storage", "--json")
    assert ran.code == 2
    assert ran.document["error"]["fix"]
