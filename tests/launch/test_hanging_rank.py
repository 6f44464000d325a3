"""A rank that hangs ends its group; which rank, where in the run and in the code is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.launch import torchrun
from dflash_pipeline.launch.torchrun import run_ranks
from dflash_pipeline.store.records import save_record
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT, artifact_location, tracking_uri
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import write_toy


@pytest.mark.slow
def test_the_rank_that_hangs_is_named_with_its_step_and_its_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torchrun, "RANK_MODULE", "tests.launch.hanging_rank")
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=SPEC, epochs=1)
    config = replace(
        toy,
        # Time enough for a first step on a busy machine.
        step_timeout_seconds=15.0,
        tracking_uri=tracking_uri(tmp_path),
        artifact_location=artifact_location(tmp_path),
    )
    run_dir = Path(config.run_dir)
    save_record(run_dir / "launch.json", config)
    with pytest.raises(Failed) as caught:
        run_ranks(
            run_dir / "launch.json", num_ranks=2, threads_per_rank=1, run_dir=run_dir, environment=CLIENT_ENVIRONMENT
        )
    message = str(caught.value)
    assert "after global step 2 (epoch 0 step 1)" in message
    assert "error-rank-1.txt" in message
    assert "rank 1 hangs: no progress for 15 s at epoch 0 step 2" in message
    assert "in fall_asleep" in message
