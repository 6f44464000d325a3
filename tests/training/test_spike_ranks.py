"""Every rank judges the loss over all ranks: flags, samples and memory are the same on each."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from dflash_pipeline.store.records import save_record
from tests.training.gloo_spikes import BAD_STEP
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import write_toy


def test_ranks_judge_alike_also_when_only_one_has_bad_data(tmp_path):
    config = replace(write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=2), run_dir=str(tmp_path / "run"))
    save_record(tmp_path / "launch.json", config)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.gloo_spikes", str(tmp_path / "launch.json"), str(tmp_path)]
    root = Path(__file__).parents[2]
    ranks = [subprocess.Popen(command, cwd=root, env={**os.environ, **group, "RANK": str(rank)}) for rank in range(2)]
    assert [process.wait(timeout=250) for process in ranks] == [0, 0]

    first, second = ((tmp_path / f"rank-{rank}.json").read_text() for rank in range(2))
    assert first == second
    found = json.loads(first)
    assert [record["global_step"] for record in found["spikes"]] == [BAD_STEP + 1]
    assert sum(map(len, found["state"]["history"])) > 10
