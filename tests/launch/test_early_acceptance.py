"""Acceptance measured beside a training, by the real process: its figures, its end, and no harm to the run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from dflash_pipeline.contracts.events import AcceptanceRecord
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.evaluation.acceptance import measure_acceptance
from dflash_pipeline.launch import early_side
from dflash_pipeline.launch.early_acceptance import measure
from dflash_pipeline.launch.early_side import measured_beside
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.training.early import EarlySettings, EarlyWork, Measured, StopRule, Unmeasured
from dflash_pipeline.training.early_mailbox import Mailbox
from dflash_pipeline.training.event_log import last_attempt_records
from tests.conftest import ROOT, Chain, write_recipe
from tests.launch.processes import is_alive, until
from tests.tiny_models import TAPS, strong_drafter, tiny_config, tiny_target
from tests.tiny_models import VOCAB as VOCAB_OF_TINY
from tests.training.test_early import waiting_for_answers
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import VOCAB, train, write_toy

READY_SECONDS = 200
"""A process that loads torch and transformers, on a machine that is busy with other tests."""
PROMPTS = tuple(tuple((7 * i + j * j) % (VOCAB - 1) for j in range(5 + i)) for i in range(4))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=LENGTHS, spec=SPEC, epochs=1)


@pytest.fixture(scope="module")
def work(toy) -> EarlyWork:
    return EarlyWork(
        target_dir=toy.target_dir,
        drafter=toy.drafter,
        prompts=PROMPTS,
        max_new_tokens=12,
        stop_ids=(),
        device="cpu",
        gpu_memory_gib=None,
        threads=1,
    )


@pytest.fixture(scope="module")
def beside(toy, work, tmp_path_factory) -> Iterator[Path]:
    """A run's folder with a measuring process beside it, for one training after another."""
    run_dir = tmp_path_factory.mktemp("run")
    with measured_beside(run_dir, work, environment=os.environ):
        mailbox = Mailbox(run_dir)
        assert until(lambda: mailbox.is_ready or mailbox.is_given_up, seconds=READY_SECONDS)
        assert mailbox.is_ready, mailbox.log.read_text()
        yield run_dir
    assert not mailbox.folder.exists()


@pytest.fixture
def run_dir(beside) -> Path:
    """Without the run that was there before."""
    shutil.rmtree(beside / "checkpoints", ignore_errors=True)
    return beside


def tiny_work(**changes: object) -> EarlyWork:
    given = {
        "target_dir": "",
        "drafter": tiny_config(),
        "prompts": PROMPTS,
        "max_new_tokens": 20,
        "stop_ids": (),
        "device": "cpu",
        "gpu_memory_gib": None,
        "threads": 1,
    }
    return EarlyWork(**{**given, **changes})


def test_the_figures_are_those_of_an_acceptance_report(tmp_path):
    target, work = tiny_target(TAPS), tiny_work(stop_ids=(3, 5, 100))
    drafter = strong_drafter(work.drafter)
    save_file(dict(drafter.state_dict()), tmp_path / "weights")
    found = measure(target, tmp_path / "weights", work, step=7)
    prompts = [np.array(prompt) for prompt in work.prompts]
    report = measure_acceptance(target, drafter, prompts, max_new_tokens=20, stop_ids={3, 5, 100})
    assert isinstance(found, Measured)
    assert (found.global_step, found.mean, (found.low, found.high)) == (7, report.mean, report.interval)
    assert found.seconds > 0


def test_what_cannot_be_measured_is_answered_with_the_reason(tmp_path):
    target, work = tiny_target(TAPS), tiny_work(stop_ids=tuple(range(VOCAB_OF_TINY)))
    save_file(dict(strong_drafter(work.drafter).state_dict()), tmp_path / "weights")
    # Whatever the target says first ends its answer: no round takes place.
    silent = measure(target, tmp_path / "weights", work, step=1)
    assert silent == Unmeasured(global_step=1, why="no prompt's answer is long enough for a whole round of drafting")
    (tmp_path / "weights").write_bytes(b"no weights")
    broken = measure(target, tmp_path / "weights", work, step=2)
    assert isinstance(broken, Unmeasured)
    assert broken.global_step == 2


def test_one_prompt_alone_says_nothing_about_others(tmp_path):
    work = tiny_work(prompts=PROMPTS[:1])
    save_file(dict(strong_drafter(work.drafter).state_dict()), tmp_path / "weights")
    found = measure(tiny_target(TAPS), tmp_path / "weights", work, step=1)
    assert isinstance(found, Measured)
    assert (found.low, found.high) == (1.0, work.drafter.block_size)


@pytest.mark.timeout(400)
def test_a_training_is_measured_while_it_runs(toy, run_dir):
    early = replace(toy, early=EarlySettings(every_steps=5, end_wait_seconds=120.0))
    run = train(early, run_dir=run_dir, watch=waiting_for_answers)
    told = [r for r in run.recorder.others if isinstance(r, AcceptanceRecord)]
    assert [r.global_step for r in told] == [5, 10, run.outcome.last_step]
    assert all(1 <= r.low <= r.mean <= r.high <= toy.drafter.block_size for r in told)
    assert all(r.num_prompts == len(PROMPTS) and r.seconds > 0 for r in told)


@pytest.mark.timeout(400)
def test_a_training_that_learns_nothing_stops_early(toy, run_dir):
    """The planted fault: a learning rate that moves nothing."""
    idle = replace(toy, settings=replace(toy.settings, learning_rate=1e-12))
    settings = EarlySettings(every_steps=2, stop=StopRule(below=2.5, after_steps=4), end_wait_seconds=0.0)
    run = train(replace(idle, early=settings), run_dir=run_dir, watch=waiting_for_answers)
    assert run.outcome.status == "early"
    assert 4 < run.outcome.last_step < 12
    assert run.trainer.early is not None
    assert "is below early.stop_below 2.5" in (run.trainer.early.reason or "")


@pytest.mark.timeout(400)
def test_a_measuring_process_that_is_killed_is_one_warning_and_no_more(toy, work, run_dir, caplog):
    """Last of those that share the process."""
    pid = measuring_processes(run_dir)[0]
    early = replace(toy, early=EarlySettings(every_steps=1, end_wait_seconds=120.0))
    seen: list[int] = []

    def watch(trainer) -> None:
        def stop_asked() -> bool:
            if trainer.early._handed and not seen:
                seen.append(pid)
                os.kill(pid, signal.SIGKILL)
                assert until(lambda: trainer.early.mailbox.is_given_up, seconds=30)
            return False

        trainer.stop_asked = stop_asked

    run = train(early, run_dir=run_dir, watch=watch)
    assert seen
    assert run.outcome.status == "finished"
    warnings = [r.getMessage() for r in caplog.records if "acceptance is measured no more" in r.getMessage()]
    assert len(warnings) == 1
    assert "its process ended with signal 9" in warnings[0]


def test_a_process_that_cannot_start_says_why(work, tmp_path, monkeypatch, caplog):
    """The training beside it goes on."""
    stand_in(monkeypatch, tmp_path, "print('loading'); raise SystemExit('there is no target')")
    with measured_beside(tmp_path / "run", work, environment=environment(tmp_path)):
        assert until(lambda: Mailbox(tmp_path / "run").is_given_up, seconds=30)
    assert [r.getMessage() for r in caplog.records] == [
        "acceptance is measured no more, the training goes on: its process ended with exit code 1: there is no target"
    ]


def test_what_ignores_being_asked_to_end_is_killed(work, tmp_path, monkeypatch):
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
    stand_in(monkeypatch, tmp_path, script + "time.sleep(600)")
    monkeypatch.setattr(early_side, "END_SECONDS", 0.2)
    run_dir = tmp_path / "run"
    with measured_beside(run_dir, work, environment=environment(tmp_path)):
        assert until(lambda: "deaf" in Mailbox(run_dir).log.read_text(), seconds=30)
        found = measuring_processes(run_dir)
        assert len(found) == 1
    assert not is_alive(found[0])


def test_an_error_in_the_body_ends_it_too(work, tmp_path, monkeypatch):
    stand_in(monkeypatch, tmp_path, "import time; time.sleep(600)")
    run_dir = tmp_path / "run"
    found: list[int] = []

    def interrupted() -> None:
        with measured_beside(run_dir, work, environment=environment(tmp_path)):
            found.extend(measuring_processes(run_dir))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(found) == 1
    assert not is_alive(found[0])
    assert not (run_dir / "early").exists()


@pytest.mark.timeout(400)
def test_it_dies_with_its_launcher(work, tmp_path):
    save_record(tmp_path / "work.json", work)
    run_dir = tmp_path / "run"
    launcher = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.early_launcher", str(run_dir), str(tmp_path / "work.json")], cwd=ROOT
    )
    try:
        assert until(lambda: measuring_processes(run_dir), seconds=READY_SECONDS)
        found = measuring_processes(run_dir)
    finally:
        launcher.kill()
        launcher.wait()
    assert len(found) == 1
    # It looks whether anyone holds it once it has loaded what it needs for that.
    assert until(lambda: not is_alive(found[0]), seconds=READY_SECONDS)


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    (folder / "stand_in_side.py").write_text(script)
    monkeypatch.setattr(early_side, "MODULE", "stand_in_side")


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder)}


def measuring_processes(run_dir: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run_dir).encode() in words and b"-m" in words and early_side.MODULE.encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_run_that_learns_nothing_is_stopped_told_and_not_taken_up_again(tmp_path):
    """With real ranks: the planted fault is a learning rate that moves nothing."""
    recipe = write_recipe(
        tmp_path / "tiny.yaml",
        batching={"epochs": 64, "slots_per_step": 2},
        training={"learning_rate": 1e-9},
        early={"enabled": True, "every_steps": 1, "stop_below": 1.5, "stop_after_steps": 2},
    )
    chain = Chain(recipe_file=recipe, storage=Storage(root=tmp_path / "storage"), facts={})
    facts = chain.answer("run", timeout=600)
    assert 2 <= facts["steps_done"] < facts["total_steps"]
    assert "is below early.stop_below 1.5" in facts["stopped_early"]
    assert facts["export_dir"].endswith(f"-step-{facts['steps_done']:07d}")
    run_dir = Path(facts["run_dir"])
    assert load_record(run_dir / "run.json", RunRecord).status == "stopped"
    told = [r for r in last_attempt_records(run_dir / "events.jsonl") if isinstance(r, AcceptanceRecord)]
    assert told[-1].high < 1.5
    again = chain.answer("train", timeout=200)
    assert (again["reused"], again["steps_done"]) == (True, facts["steps_done"])
