"""The chain as a user starts it, `dflash run` in a process of its own, with or without a fault; and what it left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_pipeline.store.files import file_sha256
from dflash_pipeline.training.event_log import last_attempt_losses
from tests.faults.points import Start

RECIPE = Path(__file__).with_name("tiny.yaml")
RUN_SECONDS = 280.0
WARM = ("--set", "training.warm_start=champion", "--set", "training.learning_rate=1.0e-3")
"""Of another run than the recipe's, which begins with the weights of that one."""
JUDGED = (
    *("snapshots/**/*", "plans/**/*", "features/**/*"),
    *("exports/*/model.safetensors", "exports/*/config.json", "runs/*/checkpoints/*/model.safetensors"),
)
A_RANK_WAS_KILLED = "was killed by SIGKILL from outside"
"""Of the launcher's sentence for a rank that ended without a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a run ended, and what it printed as JSON."""

    exit_code: int
    answer: dict[str, Any]
    errors: str

    @property
    def was_killed(self) -> bool:
        """The command died by the fault, or reports that one of its ranks did."""
        if self.exit_code == -signal.SIGKILL:
            return True
        return self.exit_code == 1 and A_RANK_WAS_KILLED in self.answer.get("error", {}).get("what", "")


def command(*options: str) -> list[str]:
    return [str(Path(sys.executable).with_name("dflash")), "run", str(RECIPE), "--json", *options]


def environment(storage: Path, fault: str = "") -> dict[str, str]:
    return {**os.environ, "DFLASH_STORAGE": str(storage), "DFLASH_FAULT": fault, "OMP_NUM_THREADS": "1"}


def run_chain(storage: Path, *options: str, fault: str = "") -> Ended:
    """Run it to its end, whatever that is. In the storage's parent, where nothing may be left behind."""
    done = subprocess.run(
        command(*options),
        env=environment(storage, fault),
        cwd=storage.parent,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    answer = json.loads(done.stdout) if done.stdout.strip() else {}
    return Ended(exit_code=done.returncode, answer=answer, errors=done.stderr)


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What a chain is judged by: derived files by hash, losses as exact text. Paths are relative to the storage."""

    files: dict[str, str]
    losses: dict[str, list[tuple[int, str]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """What an undisturbed chain leaves, and storages as they are at the start of later stages."""

    left: Left
    planned: Left
    """What it had left when it was about to train."""
    warm: Left
    """The same after a run that began with its drafter, as champion."""
    starts: dict[Start, Path]


def left_in(storage: Path) -> Left:
    """Snapshots and plans whole; of runs the losses and last weights, of exports the weights and config."""
    paths = sorted({path for name in JUDGED for path in storage.glob(name) if path.is_file()})
    return Left(
        # A killed writer's temporary file stays beside: hidden, and read by nobody.
        files={str(p.relative_to(storage)): file_sha256(p) for p in paths if not p.name.startswith(".")},
        losses={p.parent.name: last_attempt_losses(p) for p in sorted(storage.glob("runs/*/events.jsonl"))},
    )


def copy_without(storage: Path, to: Path, *, left_out: Sequence[str]) -> Path:
    """A copy of a storage, as it would be had the stages that make `left_out` (paths below it) never run."""
    shutil.copytree(storage, to)
    for name in left_out:
        path = to / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return to
