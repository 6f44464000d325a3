"""Every strategy in training, side by side in one run: one drafter, one target, a CPU.

    python bench/strategies_in_training.py --steps 24

Samples have the reference lengths divided by 16, and the token budget too: beside a target this small, attention is
then about as dear as beside a large one at full length. First the cost model is fitted to the times of slots of many
shapes, as the pipeline does after a first run. Then each strategy plans an epoch over the same samples; steps evenly
spread over it are run in turns with the others'. A step is all of its slots: target forward, drafter forward and
backward, then clip and AdamW. Two rates come out, in useful tokens a second: of the work alone, as one rank would do it
all; and of a job with a rank for each slot, where a step lasts as long as its slowest slot. Seconds are of CPU time in
one thread, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from reference_lengths import MAX_LENGTH, reference_lengths

from dflash_pipeline.contracts.batching import BatchingSpec, CostModel, Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.model.config import drafter_config
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import Objective, micro_batch_loss
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.planning.boundaries import optimise_boundaries
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.planning.step_times import fit_time_model
from dflash_pipeline.store.tokens import TokenStore, write_shards
from dflash_pipeline.training.collate import AnchorRule, Collator, PreparedBatch

ROOT = Path(__file__).parents[1]
SHRUNK = 16
TOKEN_BUDGET = 32_768 // SHRUNK
STRATEGIES: tuple[Strategy, ...] = ("sorted", "shuffle", "bucket", "window", "varlen")
GOAL = 0.97
OBJECTIVE = Objective(weighting="decay", decay=4.0)


@dataclass(kw_only=True, slots=True)
class Tally:
    """What a strategy's steps took so far."""

    tokens: int = 0
    padded: int = 0
    worked: float = 0.0
    """Seconds of all slots and updates."""
    waited: float = 0.0
    """Seconds of the slowest slot of each step, and of its update."""


class Training:
    """The drafter, its optimiser and the target. A step's slots are run one after the other, each timed."""

    def __init__(self, collate: Collator, target: FrozenTarget, drafter: Drafter) -> None:
        self._collate, self._target, self._drafter = collate, target, drafter
        self._optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3, fused=True)

    def step(self, manifest: EpochManifest, step: int, tally: Tally) -> None:
        prepared = [self._collate(manifest.micro_batch(step, slot)) for slot in range(manifest.slots_per_step)]
        seconds = [self._slot(batch, sum(b.weight for b in prepared)) for batch in prepared]
        update = self._update()
        tally.tokens += sum(b.source.num_tokens for b in prepared if not b.source.filler)
        tally.padded += sum(b.batch.input_ids.numel() for b in prepared)
        tally.worked += sum(seconds) + update
        tally.waited += max(seconds) + update

    def probe(self, manifest: EpochManifest, step: int) -> tuple[PreparedBatch, float]:
        """The first slot of a step, and its seconds."""
        prepared = self._collate(manifest.micro_batch(step, 0))
        seconds = self._slot(prepared, prepared.weight)
        self._update()
        return prepared, seconds

    def _slot(self, prepared: PreparedBatch, weight: float) -> float:
        began = time.process_time()
        parts = micro_batch_loss(self._drafter, self._target, prepared.batch, prepared.weights, OBJECTIVE)
        (parts.loss_sum / weight).backward()
        return time.process_time() - began

    def _update(self) -> float:
        began = time.process_time()
        torch.nn.utils.clip_grad_norm_(self._drafter.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return time.process_time() - began


def fitted_cost(training: Training, samples: SampleLengths, probes: int) -> CostModel:
    """From `probes` slots of each padded strategy, every slot a step of its own."""
    manifests = manifests_of(samples, 1, CostModel())
    times, tokens, squares = [], [], []
    for probe in range(probes + 1):
        for strategy in ("sorted", "window", "bucket"):
            manifest = manifests[strategy]
            batch, seconds = training.probe(manifest, probe * (manifest.num_steps - 1) // probes)
            if probe:  # The first round is slower than any other.
                rows, width = batch.batch.input_ids.shape
                times.append(seconds)
                tokens.append([float(rows * width)])
                squares.append([float(rows * width**2)])
    model = fit_time_model(np.array(times), np.array(tokens), np.array(squares), np.ones((len(times), 1)))
    print(
        f"attention is as dear as the rest at {model.cost.quadratic_length} tokens; {model.num_steps} slots, median "
        f"error {model.relative_error:.1%}\n"
    )
    return model.cost


def manifests_of(samples: SampleLengths, slots: int, cost: CostModel) -> dict[str, EpochManifest]:
    boundaries = optimise_boundaries(length_statistics(samples), num_buckets=6)
    return {
        strategy: build_epoch_manifest(
            samples,
            BatchingSpec(
                strategy=strategy,
                token_budget=TOKEN_BUDGET,
                slots_per_step=slots,
                boundaries=boundaries,
                cost=cost,
            ),
            epoch=0,
        )
        for strategy in STRATEGIES
    }


def _samples(lengths: np.ndarray, vocabulary: int) -> Iterator[Sample]:
    random = np.random.default_rng(0)
    for number, length in enumerate(lengths.tolist()):
        ids = random.integers(0, vocabulary - 1, length).astype(np.int32)
        yield Sample(conversation_id=str(number), split="train", input_ids=ids, spans=((length // 4, length),))


def _print(tallies: dict[str, Tally]) -> None:
    print(
        "| strategy | tokens | padding eff. | work, tokens/s | of sorted | with a rank a slot, tokens/s | of sorted |"
    )
    print("|---|---|---|---|---|---|---|")
    sorted_one = tallies["sorted"]
    for name, tally in tallies.items():
        work, job = tally.tokens / tally.worked, tally.tokens / tally.waited
        of_work, of_job = work * sorted_one.worked / sorted_one.tokens, job * sorted_one.waited / sorted_one.tokens
        print(
            f"| `{name}` | {tally.tokens:,} | {tally.tokens / tally.padded:.3f} | {work:,.0f} | {of_work:.2f} "
            f"| {job:,.0f} | {of_job:.2f} |"
        )
    window = tallies["window"]
    ratio = window.tokens / window.waited * sorted_one.waited / sorted_one.tokens
    print(f"\nwindow is {ratio:.3f} of sorted, goal {GOAL}: {'met' if ratio >= GOAL else 'NOT met'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=24, help="of each strategy")
    parser.add_argument("--probes", type=int, default=20, help="slots of each of three strategies to fit the cost to")
    parser.add_argument("--slots", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lengths = np.maximum(reference_lengths(given.samples) // SHRUNK, 8)
    assert lengths.max() <= MAX_LENGTH // SHRUNK
    supervised = lengths - lengths // 4
    samples = SampleLengths(snapshot="bench", num_tokens=lengths, num_supervised=supervised)
    target = FrozenTarget.load(ROOT / "examples" / "target", tap_layer_ids=(0, 1, 2))
    shape = drafter_config(
        target.config, num_layers=3, block_size=8, tap_layer_ids=(0, 1, 2), mask_token_id=1023, intermediate_size=None
    )
    with tempfile.TemporaryDirectory() as folder:
        shards = write_shards(Path(folder), _samples(lengths, target.vocab_size))
        collate = Collator(
            tokens=TokenStore(Path(folder), [shard.name for shard in shards]),
            anchors=AnchorRule(share=0.25, most=MAX_LENGTH, seed=0),
            block_size=8,
            objective=OBJECTIVE,
        )
        training = Training(collate, target, Drafter.initialised(shape, 0))
        manifests = manifests_of(samples, given.slots, fitted_cost(training, samples, given.probes))
        tallies = {name: Tally() for name in manifests}
        for turn in range(given.steps):
            for name, manifest in manifests.items():
                training.step(manifest, turn * manifest.num_steps // given.steps, tallies[name])
    _print(tallies)


if __name__ == "__main__":
    main()
