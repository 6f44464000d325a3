"""A run goes on with another number of ranks: the same global batches, and the same losses but for rounding."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_pipeline.store.records import save_record
from dflash_pipeline.training.settings import LaunchConfig
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import plan_of, train, write_toy

ROOT = Path(__file__).parents[2]


def run_on(config: LaunchConfig, folder: Path, *, num_ranks: int, stop_after: int) -> dict:
    """What the first of that many ranks did before it was stopped."""
    save_record(folder / "launch.json", config)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.gloo_run", str(folder / "launch.json"), str(stop_after)]
    ranks = [
        subprocess.Popen([*command, str(folder / "out.json")], cwd=ROOT, env={**os.environ, **group, "RANK": str(rank)})
        for rank in range(num_ranks)
    ]
    assert [process.wait(timeout=300) for process in ranks] == [0] * num_ranks
    return json.loads((folder / "out.json").read_text())


def assert_goes_on_alike(tmp_path: Path, *, slots: int, worlds: list[int]) -> None:
    spec = replace(SPEC, slots_per_step=slots, token_budget=45)
    toy = write_toy(tmp_path, lengths=LENGTHS * 2, spec=spec, epochs=2)
    total = plan_of(toy).total_steps
    assert total > len(worlds)
    alone = train(toy, run_dir=tmp_path / "alone").recorder.losses
    losses: list[list] = []
    for number, num_ranks in enumerate(worlds, start=1):
        stop = number if number < len(worlds) else total
        found = run_on(replace(toy, run_dir=str(tmp_path / "run")), tmp_path, num_ranks=num_ranks, stop_after=stop)
        assert (found["first"], found["last"]) == (number - 1, stop)
        losses += found["losses"]
    assert [step for step, _ in losses] == [step for step, _ in alone]
    for (_, theirs), (_, ours) in zip(losses, alone, strict=True):
        assert float.fromhex(theirs) == pytest.approx(float.fromhex(ours), rel=1e-6)


@pytest.mark.slow
def test_eight_ranks_then_four_then_six_then_eight(tmp_path):
    assert_goes_on_alike(tmp_path, slots=24, worlds=[8, 4, 6, 8])
