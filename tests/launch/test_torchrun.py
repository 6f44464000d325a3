"""The real torchrun, with ranks that hold no model."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.launch import torchrun
from dflash_pipeline.launch.torchrun import rank_error_path, run_ranks, torchrun_command
from tests.launch.processes import alive, pids, until


@pytest.fixture(autouse=True)
def stand_in_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torchrun, "RANK_MODULE", "stand_in_rank")


def run(config: Path) -> None:
    run_ranks(
        config,
        num_ranks=2,
        threads_per_rank=3,
        run_dir=config.parent,
        environment={"PYTHONPATH": str(Path(__file__).parent), "GREETING": "hello"},
        stop_grace_seconds=5,
    )


def test_the_command_can_be_run_by_hand():
    line = " ".join(torchrun_command(Path("launch.json"), num_ranks=8))
    assert "-m dflash_pipeline.launch.agent --standalone --nproc-per-node 8 --max-restarts 0" in line
    # Ranks that hang are gone within 30 s.
    assert "--shutdown-timeout 22 " in line
    assert line.endswith("-m stand_in_rank launch.json")


def test_ranks_run_to_their_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    run(tmp_path / "ends.json")
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == ["2 127.0.0.1 3 hello"] * 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "rank 1 says hello" in captured.err


def test_a_failure_names_the_folder_and_the_first_rank_to_fail(tmp_path: Path):
    rank_error_path(tmp_path, rank=5).write_text("of an earlier attempt")
    with pytest.raises(Failed) as caught:
        run(tmp_path / "fails.json")
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "exit code 1" in message
    assert "error-rank-1.txt" in message
    assert "rank 1 line 29" in message
    assert "rank 1 line 9\n" not in message
    assert "rank 0" not in message
    assert "earlier" not in message


def test_a_refusal_of_a_rank_is_told_in_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(Failed) as caught:
        run(tmp_path / "refuses.json")
    assert caught.value.what == (
        "the ranks ended with exit code 1, before the first step ended; error-rank-1.txt says: there: that; do this"
    )
    assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


def test_killing_torchrun_leaves_no_rank(tmp_path: Path):
    def kill_torchrun() -> None:
        assert until(lambda: len(pids(tmp_path, "pid")) == 2, seconds=30)
        status = Path(f"/proc/{pids(tmp_path, 'pid')[0]}/stat").read_text()
        os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)

    killer = threading.Thread(target=kill_torchrun)
    killer.start()
    with pytest.raises(Failed, match="SIGKILL"):
        run(tmp_path / "waits.json")
    killer.join()
    assert len(pids(tmp_path, "pid")) == 2
    assert alive(pids(tmp_path, "pid")) == []


def test_an_exception_in_the_launching_process_stops_the_ranks(tmp_path: Path):
    # As Dagster interrupts a step: an exception of its own, raised by a signal handler.
    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def send() -> None:
        assert until(lambda: len(pids(tmp_path, "pid")) == 2, seconds=30)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        start = time.monotonic()
        with pytest.raises(Interrupted):
            run(tmp_path / "waits.json")
        assert time.monotonic() - start < 30
    finally:
        signal.signal(signal.SIGUSR1, before)
        sender.join()
    assert alive(pids(tmp_path, "pid")) == []


def test_a_killed_rank_is_named_with_the_step_the_run_had_reached(tmp_path: Path):
    """It cannot say anything itself, and what the others say for want of it is not the cause."""
    events = [{"kind": "step", "global_step": 7, "epoch": 1, "step": 2}, {"kind": "epoch"}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"kind": "st')
    with pytest.raises(Failed) as caught:
        run(tmp_path / "killed.json")
    assert "after global step 7 (epoch 1 step 2)" in str(caught.value)
    assert "killed-rank-1.txt says: rank 1 was killed by SIGKILL from outside: look for lack of memory" in str(
        caught.value
    )


def test_ranks_that_were_asked_to_stop_have_not_failed_for_want_of_memory(tmp_path: Path):
    """As when SIGTERM reaches one rank, and all save and leave."""
    with pytest.raises(Failed) as caught:
        run(tmp_path / "stopped.json")
    assert caught.value.what.startswith("the ranks were asked to stop, and did so with a checkpoint before the first")
    assert "memory" not in str(caught.value)
