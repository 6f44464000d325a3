"""When acceptance is measured, what ends a run by it, and what handing weights out does to a training: nothing."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.events import AcceptanceRecord, StepRecord
from dflash_pipeline.training.early import (
    AROUND_STEPS,
    FEWEST,
    GROWTH,
    Answer,
    EarlySettings,
    EarlyWork,
    Measured,
    StopRule,
    Unmeasured,
    expected_around,
    next_due,
)
from dflash_pipeline.training.early_answers import EarlyAnswers
from dflash_pipeline.training.early_mailbox import Mailbox
from dflash_pipeline.training.event_log import EventLog, last_attempt_records
from dflash_pipeline.training.settings import Saving
from tests.launch.processes import until
from tests.training.test_loop import LENGTHS, SPEC, same_bits
from tests.training.test_sharding import PARTS, run_attempts
from tests.training.test_sharding import toy as sharded_toy
from tests.training.toy_run import Trained, train, write_toy

counts = st.integers(1, 10**6)


def measured(step: int, *, mean: float = 1.5, spread: float = 0.2) -> Measured:
    return Measured(global_step=step, mean=mean, low=mean - spread, high=mean + spread, num_prompts=8, seconds=1.0)


def record(step: int, *, mean: float = 1.5, spread: float = 0.2) -> AcceptanceRecord:
    return measured(step, mean=mean, spread=spread).record(expected_acceptance=2.0)


@given(after=st.integers(0, 10**6), every=counts, total=counts)
def test_with_a_distance_measurements_lie_on_its_multiples(after, every, total):
    due = next_due(after, every_steps=every, total_steps=total)
    assert due % every == 0
    assert after < due <= after + every


@given(total=counts)
def test_without_one_they_lie_ever_further_apart_but_never_too_far(total):
    steps = [0]
    while steps[-1] < total:
        steps.append(next_due(steps[-1], every_steps=None, total_steps=total))
    gaps = [b - a for a, b in pairwise(steps[1:])]
    assert all(gap >= 1 for gap in gaps)
    assert max(gaps, default=0) <= max(1, total // FEWEST)
    assert steps[1] <= 8
    assert len(steps) <= 2 * FEWEST + math.log(total, GROWTH) + 2


RULE = StopRule(below=2.0, after_steps=100)


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (record(100, mean=1.5, spread=0.4), True),
        (record(99, mean=1.5, spread=0.4), False),
        (record(100, mean=1.5, spread=0.5), False),  # It may be 2.0.
        (record(10_000, mean=2.5), False),
    ],
)
def test_a_run_ends_when_its_whole_interval_is_below_late_enough(given, ends):
    assert (RULE.reason(given) is not None) is ends
    assert StopRule().reason(given) is None


def test_the_reason_says_what_was_seen_and_which_setting_it_broke():
    assert RULE.reason(record(1200)) == (
        "acceptance length 1.50 (1.30 to 1.70) on 8 prompts after step 1,200 is below early.stop_below 2"
    )
    enough = StopRule(above=3.0)
    assert "above early.stop_above 3" in (enough.reason(record(1, mean=3.5)) or "")
    assert enough.reason(record(1, mean=3.1)) is None


def test_limits_that_contradict_are_refused():
    for wrong in ({"below": 2.0, "above": 2.0}, {"below": 2.0, "after_steps": 0}):
        with pytest.raises(ContractBroken):
            StopRule(**wrong)


def test_what_training_expected_is_averaged_around_the_step():
    estimates = {step: float(step) for step in range(1, 40)} | {21: math.nan}
    near = [step for step in range(20 - AROUND_STEPS, 20 + AROUND_STEPS + 1) if step != 21]
    assert expected_around(20, estimates) == pytest.approx(sum(near) / len(near))
    assert expected_around(1, {1: 3.0}) == 3.0
    assert math.isnan(expected_around(100, estimates))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=LENGTHS, spec=SPEC, epochs=3)


@pytest.fixture(scope="module")
def without(toy, tmp_path_factory) -> Trained:
    return train(toy, run_dir=tmp_path_factory.mktemp("without"))


def mailbox_in(run_dir: Path, toy) -> Mailbox:
    mailbox = Mailbox(run_dir)
    work = EarlyWork(
        target_dir=toy.target_dir,
        drafter=toy.drafter,
        prompts=((1, 2, 3),),
        max_new_tokens=8,
        stop_ids=(),
        device="cpu",
        gpu_memory_gib=None,
        threads=1,
    )
    mailbox.open(work)
    assert mailbox.work() == work
    return mailbox


class Answering:
    """The other side, in a thread: says the same of all weights, and keeps what it was given."""

    def __init__(self, mailbox: Mailbox, say=measured) -> None:
        self.mailbox, self.say = mailbox, say
        self.given: dict[int, dict[str, torch.Tensor]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> Answering:
        self.mailbox.announce()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _answer(self) -> None:
        while not self._over.wait(0.001):
            if waiting := self.mailbox.waiting():
                step, weights = waiting
                assert step not in self.given
                self.given[step] = {name: tensor.clone() for name, tensor in load_file(weights).items()}
                self.mailbox.reply(self.say(step), weights)


def waiting_for_answers(trainer) -> None:
    """Makes a toy's steps wait for what a real run's steps are long enough for."""

    def stop_asked() -> bool:
        early = trainer.early
        if early is not None and early._under_way is not None:
            assert until(lambda: early.mailbox.read_answers(early._read)[0], seconds=30)
        return False

    trainer.stop_asked = stop_asked


def test_weights_are_handed_out_whole_and_the_training_is_the_same_to_the_last_bit(toy, without, tmp_path):
    run_dir = tmp_path / "run"
    early = replace(toy, early=EarlySettings(every_steps=4, end_wait_seconds=30.0))
    with Answering(mailbox_in(run_dir, toy)) as other:
        run = train(early, run_dir=run_dir, watch=waiting_for_answers)
    assert run.recorder.losses == without.recorder.losses
    assert same_bits(run.weights, without.weights)
    assert run.outcome.status == "finished"
    last = run.outcome.last_step
    told = [r for r in run.recorder.others if isinstance(r, AcceptanceRecord)]
    assert [r.global_step for r in told] == list(other.given) == [*range(4, last, 4), last]
    estimates = {r.global_step: r.expected_acceptance for r in run.recorder.steps}
    assert told[-1].expected_acceptance == expected_around(last, estimates)
    # Some steps after it may not have been done yet when it was told.
    near = [estimates[step] for step in range(max(1, 8 - AROUND_STEPS), 8 + AROUND_STEPS + 1)]
    assert min(near) <= told[1].expected_acceptance <= max(near)
    assert same_bits(other.given[last], run.weights)
    assert not same_bits(other.given[4], other.given[8])
    assert list(run_dir.glob("early/*.safetensors")) == []


def test_what_is_written_is_what_was_when_it_was_handed_out(toy, tmp_path, monkeypatch):
    go, put = threading.Event(), Mailbox.put
    monkeypatch.setattr(Mailbox, "put", lambda *inputs: go.wait(30) and put(*inputs))
    mailbox = mailbox_in(tmp_path, toy)
    mailbox.announce()
    early = EarlyAnswers(EarlySettings(every_steps=1), tmp_path, done=0, total_steps=9)
    model = torch.nn.Linear(3, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert early.is_due(1)
    early.hand_out(1, model)  # Comes back without waiting for the disk.
    assert not early.is_due(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    go.set()
    assert until(mailbox.waiting, seconds=30)
    assert same_bits(load_file(mailbox.folder / "step_1.safetensors"), before)


def test_a_measurement_that_takes_long_is_never_followed_by_a_queue(toy, without, tmp_path):
    """Nobody answers: one file of weights, and a run that goes on and ends."""
    run_dir = tmp_path / "run"
    mailbox = mailbox_in(run_dir, toy)
    mailbox.announce()
    run = train(replace(toy, early=EarlySettings(every_steps=1, end_wait_seconds=0.0)), run_dir=run_dir)
    assert run.recorder.losses == without.recorder.losses
    assert run.trainer.early is not None
    assert len(run.trainer.early.handed_seconds) == 1
    assert [path.name for path in run_dir.glob("early/*.safetensors")] == ["step_1.safetensors"]
    assert run.recorder.others == []


@pytest.mark.parametrize("state", ["nobody", "gone"])
def test_without_another_side_nothing_is_handed_out(toy, without, tmp_path, state):
    run_dir = tmp_path / "run"
    mailbox = mailbox_in(run_dir, toy)
    if state == "gone":
        mailbox.announce()
        mailbox.give_up()
    run = train(replace(toy, early=EarlySettings(every_steps=1, end_wait_seconds=0.0)), run_dir=run_dir)
    assert run.trainer.early is not None
    assert run.trainer.early.handed_seconds == []
    assert run.recorder.losses == without.recorder.losses


def test_weights_that_cannot_be_written_are_one_warning(toy, without, tmp_path, monkeypatch, caplog):
    def full(*_inputs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Mailbox, "put", full)
    run_dir = tmp_path / "run"
    mailbox_in(run_dir, toy).announce()
    run = train(replace(toy, early=EarlySettings(every_steps=1)), run_dir=run_dir)
    assert run.recorder.losses == without.recorder.losses
    assert [r.message for r in caplog.records if "acceptance is measured no more" in r.message] == [
        "acceptance is measured no more: weights of step 1 cannot be written: no space left on device"
    ]


def test_a_run_stops_early_with_a_checkpoint_and_goes_on_without_the_rule(toy, without, tmp_path):
    run_dir = tmp_path / "run"
    settings = EarlySettings(every_steps=3, stop=StopRule(below=2.0, after_steps=6), end_wait_seconds=30.0)
    with Answering(mailbox_in(run_dir, toy)) as other:
        run = train(replace(toy, early=settings), run_dir=run_dir, watch=waiting_for_answers)
    assert run.outcome.status == "early"
    assert not run.outcome.finished
    assert not run.outcome.asked_to_stop
    assert list(other.given) == [3, 6]
    # Told in the step that handed those weights out or in the next, and the one after it is the last.
    assert run.outcome.last_step in (7, 8)
    assert (run_dir / "checkpoints" / f"step_{run.outcome.last_step:07d}").is_dir()
    rest = train(replace(toy, early=None), run_dir=run_dir)
    assert run.recorder.losses + rest.recorder.losses == without.recorder.losses


def test_the_last_weights_ending_a_finished_run_change_nothing(toy, tmp_path):
    run_dir = tmp_path / "run"
    settings = EarlySettings(every_steps=10**6, stop=StopRule(below=2.0), end_wait_seconds=30.0)
    with Answering(mailbox_in(run_dir, toy)):
        run = train(replace(toy, early=settings), run_dir=run_dir)
    assert run.outcome.status == "finished"
    assert [r.global_step for r in run.recorder.others] == [run.outcome.last_step]


def test_weights_that_give_no_figure_are_no_record(toy, tmp_path, caplog):
    def say(step: int) -> Answer:
        return Unmeasured(global_step=step, why="too short")

    run_dir = tmp_path / "run"
    settings = EarlySettings(every_steps=10**6, end_wait_seconds=30.0)
    with Answering(mailbox_in(run_dir, toy), say):
        run = train(replace(toy, early=settings), run_dir=run_dir)
    assert run.recorder.others == []
    assert "was not measured: too short" in caplog.text


def test_an_answer_under_way_is_read_when_it_is_whole(tmp_path, toy):
    mailbox = mailbox_in(tmp_path, toy)
    assert mailbox.read_answers(0) == ([], 0)
    whole = b""
    for step in (1, 2):
        weights = mailbox.folder / f"step_{step}.safetensors"
        weights.touch()
        mailbox.reply(measured(step), weights)
        whole = mailbox.answers.read_bytes()
    first = whole.index(b"\n") + 1
    mailbox.answers.write_bytes(whole[: first + 5])
    assert mailbox.read_answers(0) == ([measured(1)], first)
    assert mailbox.read_answers(first) == ([], first)
    mailbox.answers.write_bytes(whole)
    assert mailbox.read_answers(first) == ([measured(2)], len(whole))
    assert EarlyAnswers(EarlySettings(), tmp_path, done=0, total_steps=9).arrived() == []


def test_what_a_later_attempt_did_again_takes_its_measurements_along(toy, without, tmp_path):
    """Acceptance is told some steps after its own: a step that was done again stands behind it in the log."""
    steps: list[StepRecord] = without.recorder.steps[:6]
    log = EventLog(tmp_path / "events.jsonl")
    log.start({})
    for told in [*steps[:3], record(2), *steps[3:5], record(4), steps[5]]:
        log.tell(told)
    again = [replace(step, attempt=2) for step in steps[3:]]
    for told in again:
        log.tell(told)
    kept = last_attempt_records(tmp_path / "events.jsonl")
    assert [(type(r), r.global_step) for r in kept] == [
        *((StepRecord, n) for n in (1, 2, 3)),
        (AcceptanceRecord, 2),
        *((StepRecord, n) for n in (4, 5, 6)),
    ]
    assert all(r.attempt == 2 for r in kept[4:] if isinstance(r, StepRecord))


def test_weights_in_parts_are_handed_out_whole(tmp_path):
    """What lies there to be measured is what a checkpoint of that step holds; the second rank lends its parts."""
    config = replace(
        sharded_toy(tmp_path, slots=2),
        run_dir=str(tmp_path / "run"),
        sharding=PARTS,
        saving=Saving(keep=-1, every_steps=1),
        early=EarlySettings(every_steps=2, end_wait_seconds=0.0),
    )
    mailbox_in(tmp_path / "run", config).announce()
    found = run_attempts(tmp_path, [(config, 3)], num_ranks=2)
    assert [attempt["last"] for (attempt,) in found] == [3, 3]
    handed = load_file(tmp_path / "run" / "early" / "step_2.safetensors")
    assert same_bits(handed, load_file(tmp_path / "run" / "checkpoints" / "step_0000002" / "model.safetensors"))
