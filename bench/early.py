"""What the early answer costs: steps a second with and without it, and seconds that handing weights out takes a rank.

    python bench/early.py
    python bench/early.py --copies-only

Trains the demo's drafter on a few rows with two ranks, in turn without measurements, as they come by default, and one
after another without a pause (`every_steps: 1`), which no run does by default. Where ranks have every core already, as
on a machine with two, the measuring process takes its share of them; a machine with spare cores pays for the copy only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torch import nn

from dflash_pipeline.training.early import EarlySettings
from dflash_pipeline.training.early_answers import EarlyAnswers
from dflash_pipeline.training.event_log import read_events

ROOT = Path(__file__).parents[1]
MODES = {
    "without": ("early.enabled=false",),
    "default": ("early.enabled=true",),
    "without a pause": ("early.enabled=true", "early.every_steps=1"),
}
SMALL = ("data.max_rows=160", "responses.max_new_tokens=48", "evaluation.num_prompts=2", "batching.epochs=8")
WARM_UP_STEPS = 5
SIZES = (1_000_000, 10_000_000, 100_000_000, 400_000_000)


def dflash(storage: Path, command: str, *options: str) -> dict[str, object]:
    program = [sys.executable, "-c", "from dflash_pipeline.cli import main; main()"]
    done = subprocess.run(
        [*program, command, str(ROOT / "recipes" / "demo.yaml"), *options, "--json"],
        env={**os.environ, "DFLASH_STORAGE": str(storage), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def settings(*overrides: str) -> list[str]:
    return [word for override in (*SMALL, *overrides) for word in ("--set", override)]


def train(storage: Path, mode: str) -> dict[str, float]:
    found = dflash(storage, "train", "--fresh", *settings(*MODES[mode]))
    events = read_events(Path(str(found["run_dir"])) / "events.jsonl")
    seconds = [event["seconds"] for event in events if event["kind"] == "step"][WARM_UP_STEPS:]
    measured = [event["seconds"] for event in events if event["kind"] == "acceptance"]
    return {
        "steps_a_second": len(seconds) / sum(seconds),
        "measured": len(measured),
        "measuring_seconds": statistics.median(measured) if measured else 0.0,
    }


def copy_seconds(parameters: int) -> float:
    """Of handing out this many float32 weights on a CPU, the least of five."""
    model = nn.Linear(1000, parameters // 1000, bias=False)
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(5):
            early = EarlyAnswers(EarlySettings(every_steps=1), Path(folder), done=0, total_steps=10)
            early.mailbox.folder.mkdir(exist_ok=True)
            early.hand_out(1, model)
            taken += early.handed_seconds
            while early.mailbox.waiting() is None:
                time.sleep(0.01)
            early.mailbox.clear()
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="trainings of each kind")
    parser.add_argument("--copies-only", action="store_true")
    arguments = parser.parse_args()
    print(f"{'weights':>12}  seconds of a rank to hand them out")
    for size in SIZES:
        print(f"{size:>12,}  {copy_seconds(size):.4f}")
    if arguments.copies_only:
        return
    with tempfile.TemporaryDirectory() as folder:
        storage = Path(folder) / "storage"
        dflash(storage, "run", "--plan-only", *settings())
        rounds = [{mode: train(storage, mode) for mode in MODES} for _ in range(arguments.rounds)]
    print(f"\nload of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; steps a second, best of rounds")
    best = {mode: max((r[mode] for r in rounds), key=lambda found: found["steps_a_second"]) for mode in MODES}
    for mode, found in best.items():
        ratio = found["steps_a_second"] / best["without"]["steps_a_second"]
        print(
            f"{mode:>16}  {found['steps_a_second']:.2f}  ({ratio:.3f} of without), {found['measured']:.0f} measured, "
            f"{found['measuring_seconds']:.1f} s each"
        )


if __name__ == "__main__":
    main()
