"""Starts the ranks of one run with torchrun, waits for them, and says what failed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.launch.earlier import wait_for_earlier_ranks
from dflash_pipeline.launch.group import run_group
from dflash_pipeline.training.event_log import last_step

AGENT_MODULE = "dflash_pipeline.launch.agent"
RANK_MODULE = "dflash_pipeline.launch.rank"
LAST_LINES = 20
STOP_SECONDS = 22
"""For ranks that are asked to stop, to end their step and save; torchrun then kills them. With what it takes to notice,
a training that is terminated is gone within 30 s."""
STOPPED = 128 + signal.SIGTERM
"""How a rank ends that was asked to stop, with a checkpoint; and torchrun's process, when that is all that happened."""
INTERRUPTED = 128 + signal.SIGINT
"""How torchrun's process ends that got SIGINT and passed it on."""


def torchrun_command(config: Path, *, num_ranks: int) -> list[str]:
    """The line that anyone may run by hand: ranks on this machine, started once and never restarted."""
    return [
        sys.executable,
        *("-m", AGENT_MODULE),
        "--standalone",
        *("--nproc-per-node", str(num_ranks)),
        *("--max-restarts", "0"),
        *("--shutdown-timeout", str(STOP_SECONDS)),
        # A machine's own name often does not resolve, in containers above all.
        *("--local-addr", "127.0.0.1"),
        # Otherwise each launch leaves an empty folder behind in the temporary directory.
        *("--log-dir", os.devnull),
        *("-m", RANK_MODULE, str(config)),
    ]


def rank_error_path(run_dir: Path, *, rank: int) -> Path:
    """Where a rank that fails writes why."""
    return run_dir / f"error-rank-{rank}.txt"


def run_ranks(
    config: Path,
    *,
    num_ranks: int,
    threads_per_rank: int,
    run_dir: Path,
    environment: Mapping[str, str],
    stop_grace_seconds: float = 60.0,
) -> None:
    """Runs the ranks to their end. `environment` is added to this process's own.

    An exit code other than 0 is `Failed`, with what the first failing rank wrote. An exception here, such as an
    interrupt, stops the ranks and is raised again. In every case no process of the run is left. Ranks that an earlier
    launch left are waited for: Failed if they stay.
    """
    wait_for_earlier_ranks(config, module=RANK_MODULE)
    for stale in (*run_dir.glob("error-rank-*.txt"), *run_dir.glob("killed-rank-*.txt")):
        stale.unlink()
    exit_code = run_group(
        torchrun_command(config, num_ranks=num_ranks),
        environment={**os.environ, **_threads(threads_per_rank), **environment},
        stop_grace_seconds=stop_grace_seconds,
    )
    if exit_code:
        raise _failure(run_dir, exit_code)


def _threads(count: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {name: str(count) for name in names} | {"TOKENIZERS_PARALLELISM": "false"}


def _failure(run_dir: Path, exit_code: int) -> Failed:
    if exit_code in (STOPPED, INTERRUPTED):
        return Failed(
            f"the ranks were asked to stop, and did so with a checkpoint {_reached(run_dir)}",
            where=str(run_dir),
            fix="start the same run again: it goes on from there",
        )
    return Failed(
        f"the ranks ended with {_ending(exit_code)}, {_reached(run_dir)}; {_first_error(run_dir)}",
        where=str(run_dir),
        fix="correct what is named and start the same run again: it continues at its newest checkpoint",
    )


def _ending(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code > 0 else f"signal {signal.Signals(-exit_code).name}"


def _reached(run_dir: Path) -> str:
    step = last_step(run_dir / "events.jsonl")
    if step is None:
        return "before the first step ended"
    return f"after global step {step['global_step']} (epoch {step['epoch']} step {step['step']})"


def _first_error(run_dir: Path) -> str:
    # The first to fail is the cause: the others fail a moment later, for want of an answer from it.
    killed = sorted(run_dir.glob("killed-rank-*.txt"))
    errors = killed or sorted(run_dir.glob("error-rank-*.txt"), key=lambda path: path.stat().st_mtime_ns)
    if not errors:
        return "no rank wrote why (a rank killed from outside cannot: look for lack of memory)"
    lines = errors[0].read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    if len(lines) == 1:
        return f"{errors[0].name} says: {lines[0]}"
    return "\n".join([f"{errors[0].name} ends:", *lines[-LAST_LINES:], ""])
