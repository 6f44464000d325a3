"""Loss series of real small trainings, each with one cause planted: `python bench/spike_trainings.py OUT [CAUSE…]`.

The demo's target and conversations, one rank on the CPU. First a drafter is trained until its loss falls slowly; each
cause then begins with that one, for some hundred steps: minutes each. What it writes lies in tests/training/series/,
where the detector is tested with it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from dflash_pipeline.contracts.events import Record, StepRecord
from dflash_pipeline.contracts.manifest import EpochManifest, MicroBatch
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.model.objective import target_outputs
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.batching import make_boundaries, make_epochs, make_plan, make_statistics
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.launch_config import launch_config
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.plans import load_planned_epoch
from dflash_pipeline.training.collate import PreparedBatch
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.loop import Trainer
from dflash_pipeline.training.tracker import EndStatus, Params

ROOT = Path(__file__).parents[1]
AT = 90
"""Global step, from 0, that is planted."""
REPEATS = 20
PAD = 0
"""The target's padding token."""
BAD_STEP = 18
"""Of epoch 0: its conversations are the bad ones."""
COMMON = (
    *("data.max_rows=360", "batching.num_buckets=1", "drafter.num_layers=1"),
    *("training.num_ranks=1", "training.end_fraction=1.0"),
)
WARM = ("batching.epochs=10", "batching.token_budget=2048")
MIXED = ("batching.epochs=11", "batching.token_budget=4096")
STATIC = ("batching.epochs=5", "batching.token_budget=2048", "batching.strategy=sorted")

Slot = tuple[int, int, int]
"""Epoch, step of it, slot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """What a cause changes: batches in place of those of the manifest, and the learning rate at a step."""

    batches: Mapping[Slot, PreparedBatch] = field(default_factory=dict)
    rates: Mapping[int, float] = field(default_factory=dict)
    """Factor of the learning rate, by global step from 0."""
    steps: tuple[int, ...] = ()
    """Global steps, from 0, at which the loss should show it."""


@dataclass(kw_only=True)
class Losses:
    """A tracker that keeps step records."""

    steps: list[StepRecord] = field(default_factory=list)

    def start(self, params: Params) -> None:
        pass

    def tell(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self.steps.append(record)

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("causes", nargs="*", default=[], metavar="CAUSE", help=", ".join(CAUSES))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dflash-spikes-") as folder:
        storage = Storage(root=Path(folder))
        weights = _warm(storage)
        for cause in asked.causes or CAUSES:
            series = train(cause, storage, weights)
            (asked.out / f"{cause}.json").write_text(json.dumps(series) + "\n")
            found = [(step, series["loss"][step]) for step in series["planted"]]
            print(f"{cause}: {len(series['loss'])} steps; planted, with their losses: {found}", flush=True)


def train(cause: str, storage: Storage, weights: Mapping[str, torch.Tensor]) -> dict[str, list[object]]:
    """Columns of a series, as `dflash spikes --losses` reads it, and the steps where the cause should show."""
    trainer, losses = _trainer(storage, STATIC if cause == "static" else MIXED)
    trainer.drafter.load_state_dict(weights)
    planted = CAUSES[cause](trainer)
    _plant(trainer, planted)
    trainer.train()
    manifests = [load_planned_epoch(trainer.plan_dir, trainer.plan, e) for e in range(len(trainer.plan.epochs))]
    return {
        "loss": [round(record.loss, 4) for record in losses.steps],
        "bucket": [record.bucket for record in losses.steps],
        "epoch": [record.epoch for record in losses.steps],
        "sample_ids": [_samples(manifests[record.epoch], record.step) for record in losses.steps],
        "planted": list(planted.steps),
    }


def _nothing(trainer: Trainer) -> Planted:
    return Planted()


def _learning_rate(trainer: Trainer) -> Planted:
    """Ten times as high for one step: the next one pays for it."""
    return Planted(rates={AT: 10.0}, steps=(AT + 1,))


def _shuffled_labels(trainer: Trainer) -> Planted:
    """One step's labels in random order, its context as it was."""
    return Planted(batches={slot: _shuffled(trainer, slot, context=True) for slot in _slots(trainer, AT)}, steps=(AT,))


def _repeated_batch(trainer: Trainer) -> Planted:
    """One step's batches again and again, until they are known by heart; then the others return."""
    again = {slot[2]: _prepared(trainer, slot) for slot in _slots(trainer, AT)}
    steps = range(AT, AT + REPEATS)
    return Planted(batches={slot: again[slot[2]] for step in steps for slot in _slots(trainer, step)}, steps=())


def _padding_in_loss(trainer: Trainer) -> Planted:
    """The second half of each row of one step is padding, and still carries the loss."""
    batches = {}
    for slot in _slots(trainer, AT):
        prepared = _prepared(trainer, slot)
        ids = prepared.batch.input_ids.clone()
        ids[:, ids.shape[1] // 2 :] = PAD
        batches[slot] = replace(prepared, batch=replace(prepared.batch, input_ids=ids))
    return Planted(batches=batches, steps=(AT,))


def _static(trainer: Trainer) -> Planted:
    """Some conversations are bad, and batches are the same in every epoch: so they always come together."""
    bad = set(_samples(_manifest(trainer, 0), BAD_STEP))
    batches, steps = {}, []
    for number in range(trainer.plan.total_steps):
        for slot in _slots(trainer, number):
            if bad & set(_micro_batch(trainer, slot).sample_ids.tolist()):
                batches[slot] = _shuffled(trainer, slot, context=False)
                steps.append(number)
    return Planted(batches=batches, steps=tuple(dict.fromkeys(steps)))


CAUSES: dict[str, Callable[[Trainer], Planted]] = {
    "quiet": _nothing,
    "learning_rate": _learning_rate,
    "shuffled_labels": _shuffled_labels,
    "repeated_batch": _repeated_batch,
    "padding_in_loss": _padding_in_loss,
    "static": _static,
}


def _warm(storage: Storage) -> dict[str, torch.Tensor]:
    trainer, losses = _trainer(storage, WARM)
    trainer.train()
    print(f"warm: loss {losses.steps[-1].loss:.2f} after {trainer.plan.total_steps} steps", flush=True)
    return trainer.drafter.state_dict()


def _trainer(storage: Storage, settings: tuple[str, ...]) -> tuple[Trainer, Losses]:
    """What is the same for every cause is made once and reused."""
    recipe = load_recipe(ROOT / "recipes" / "demo.yaml", [*COMMON, *settings])
    ingestion = make_conversations(recipe, storage).record
    snapshot = make_snapshot(recipe, storage, ingestion, make_responses(recipe, storage, ingestion).record).record
    boundaries = make_boundaries(recipe, storage, make_statistics(storage, snapshot))
    make_epochs(
        recipe, storage, snapshot, boundaries, range(recipe.batching.epochs), tell=lambda planned, manifest: None
    )
    plan = make_plan(recipe, storage, snapshot, boundaries).record
    losses = Losses()
    trainer = Trainer(
        launch_config(recipe, storage, snapshot, plan, fresh=True),
        ranks=Ranks(rank=0, world_size=1, device=torch.device("cpu")),
        tracker=losses,
        attempt=1,
        stop_asked=lambda: False,
        board=ProgressBoard(),
        beat=lambda doing: None,
    )
    return trainer, losses


def _plant(trainer: Trainer, planted: Planted) -> None:
    usual, taken = trainer.collate, iter(range(trainer.plan.total_steps))

    def collate(source: MicroBatch) -> PreparedBatch:
        return planted.batches.get((source.epoch, source.step, source.slot)) or usual(source)

    def faster(optimizer: torch.optim.Optimizer, *_: object) -> None:
        factor = planted.rates.get(next(taken), 1.0)
        for group in optimizer.param_groups:
            group["lr"] *= factor

    trainer.collate = collate  # type: ignore[assignment]  # It is only called.
    trainer.optimizer.register_step_pre_hook(faster)


def _shuffled(trainer: Trainer, slot: Slot, *, context: bool) -> PreparedBatch:
    """Tokens of a micro-batch in random order, row by row; with `context`, what is seen of them is as before."""
    prepared = _prepared(trainer, slot)
    features = target_outputs(trainer.target, prepared.batch, needs_last=False)[0] if context else None
    generator = torch.Generator().manual_seed(0)
    ids = prepared.batch.input_ids.clone()
    for row in ids:
        row[:] = row[torch.randperm(row.numel(), generator=generator)]
    return replace(prepared, batch=replace(prepared.batch, input_ids=ids, features=features))


def _prepared(trainer: Trainer, slot: Slot) -> PreparedBatch:
    return trainer.collate(_micro_batch(trainer, slot))


def _micro_batch(trainer: Trainer, slot: Slot) -> MicroBatch:
    epoch, step, place = slot
    return _manifest(trainer, epoch).micro_batch(step, place)


def _slots(trainer: Trainer, number: int) -> list[Slot]:
    """Of the global step, from 0."""
    at: Position = trainer.plan.position(number)  # type: ignore[arg-type]  # A plain number is a global step here.
    return [(at.epoch, at.step, slot) for slot in range(trainer.plan.spec.slots_per_step)]


def _manifest(trainer: Trainer, epoch: int) -> EpochManifest:
    return load_planned_epoch(trainer.plan_dir, trainer.plan, epoch)


def _samples(manifest: EpochManifest, step: int) -> list[int]:
    return [int(i) for batch in manifest.step_batches(step) if not batch.filler for i in batch.sample_ids]


if __name__ == "__main__":
    main()
