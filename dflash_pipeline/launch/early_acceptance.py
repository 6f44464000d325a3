"""The measuring process: `python -m dflash_pipeline.launch.early_acceptance RUN_DIR`.

It holds the target, waits for weights in the run's folder `early`, drafts and verifies the same few prompts with each,
and answers with a line. It is no rank: no rank waits for it, and it is asked nothing when it ends. Of its work nothing
needs saving, so it ends at once when its launcher lets go of it or sends SIGTERM.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.evaluation.bootstrap import mean_interval
from dflash_pipeline.evaluation.decode import Decoded
from dflash_pipeline.evaluation.decode_rows import Decoding, draft_and_verify_all
from dflash_pipeline.launch.lifeline import LIFELINE_VARIABLE, watch_lifeline
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.training.early import Answer, EarlyWork, Measured, Unmeasured
from dflash_pipeline.training.early_mailbox import Mailbox

NICENESS = 10
"""A tenth of a core's share where ranks want all of it; the whole of one that nobody wants."""
LOOK_SECONDS = 0.2
GRACE_SECONDS = 2.0


def main(arguments: Sequence[str]) -> int:
    """Measures until it is ended from outside."""
    os.nice(NICENESS)
    if lifeline := os.environ.get(LIFELINE_VARIABLE):
        watch_lifeline(Path(lifeline), grace_seconds=GRACE_SECONDS)
    mailbox = Mailbox(Path(arguments[0]))
    work = mailbox.work()
    torch.set_num_threads(work.threads)
    target = _target(work)
    mailbox.announce()
    while True:
        if (waiting := mailbox.waiting()) is None:
            time.sleep(LOOK_SECONDS)
            continue
        step, weights = waiting
        mailbox.reply(measure(target, weights, work, step=step), weights)


def measure(target: FrozenTarget, weights: Path, work: EarlyWork, *, step: int) -> Answer:
    """Greedy drafting and verification on all prompts. What cannot be measured is answered with the reason."""
    began = time.perf_counter()
    try:
        drafter = _drafter(work.drafter, weights, target)
        decoding = Decoding(
            max_new_tokens=work.max_new_tokens, stop_ids=frozenset(work.stop_ids), batch_size=len(work.prompts)
        )
        decoded = draft_and_verify_all(target, drafter, work.prompts, decoding, numbers=range(len(work.prompts)))
    except (DflashError, SafetensorError) as error:
        return Unmeasured(global_step=step, why=str(error))
    means = [mean for one in decoded if (mean := acceptance_length(one)) is not None]
    if not means:
        return Unmeasured(global_step=step, why="no prompt's answer is long enough for a whole round of drafting")
    low, high = mean_interval(means) if len(means) > 1 else (1.0, float(work.drafter.block_size))
    return Measured(
        global_step=step,
        mean=float(np.mean(means)),
        low=low,
        high=high,
        num_prompts=len(means),
        seconds=time.perf_counter() - began,
    )


def acceptance_length(decoded: Decoded) -> float | None:
    """Mean over the whole rounds of one prompt, as in an acceptance report; None without one."""
    whole = decoded.accepted[: len(decoded.accepted) - decoded.cut]
    return sum(whole) / len(whole) if whole else None


def _target(work: EarlyWork) -> FrozenTarget:
    """In the number format that the ranks run it in on such a device."""
    taps, path = work.drafter.tap_layer_ids, Path(work.target_dir)
    if work.device == "cpu":
        return FrozenTarget.load(path, tap_layer_ids=taps)
    if work.gpu_memory_gib is not None:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, work.gpu_memory_gib * 2**30 / whole), 0)
    return FrozenTarget.load(path, tap_layer_ids=taps, device="cuda:0", dtype="bfloat16")


def _drafter(config: DrafterConfig, weights: Path, target: FrozenTarget) -> Drafter:
    with torch.device("meta"):
        drafter = Drafter(config)
    drafter.load_state_dict(load_file(weights), assign=True)
    return drafter.to(target.device, target.dtype).eval()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
