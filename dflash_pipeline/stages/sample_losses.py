"""Losses of single samples, computed afterwards: a step's loss does not tell whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.stages.run_files import RunFiles
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import load_record


def samples_losses(
    storage: Storage, run: RunFiles, epochs: Mapping[int, int], *, before: int
) -> tuple[dict[int, float], str]:
    """Loss of each sample with the blocks that it has in the epoch given, and the name of the checkpoint.

    The newest whole checkpoint before the global step `before`, or else the oldest one after it, gives the weights:
    they are not those of the step itself, so the losses are to be compared with each other. On the CPU.
    """
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from dflash_pipeline.contracts.manifest import MicroBatch
    from dflash_pipeline.model.drafter import Drafter
    from dflash_pipeline.model.objective import micro_batch_loss
    from dflash_pipeline.model.target import FrozenTarget
    from dflash_pipeline.stages.tokens import open_tokens
    from dflash_pipeline.training.collate import AnchorRule, Collator

    if run.launch is None or run.plan is None:
        raise Refused(
            "how it was launched is not known", where=str(run.folder), fix="leave --sample-losses out for this run"
        )
    launch, settings = run.launch, run.launch.settings
    checkpoint = _checkpoint(run.folder / "checkpoints", before)
    snapshot = load_record(storage.snapshots / run.plan.snapshot / "snapshot.json", CorpusSnapshot)
    tokens = open_tokens(storage, snapshot)
    drafter = Drafter.initialised(launch.drafter, settings.seed)
    drafter.load_state_dict(load_file(checkpoint / "model.safetensors"))
    target = FrozenTarget.load(
        Path(launch.target_dir), device="cpu", dtype="float32", tap_layer_ids=launch.drafter.tap_layer_ids
    )
    collate = Collator(
        tokens=tokens,
        anchors=AnchorRule(share=settings.anchor_share, most=settings.anchors_per_sample, seed=settings.seed),
        block_size=launch.drafter.block_size,
        objective=settings.objective,
    )
    losses = {}
    for sample, epoch in epochs.items():
        length = int(tokens.input_ids(sample).size)
        alone = MicroBatch(
            epoch=epoch,
            step=0,
            slot=0,
            sample_ids=np.array([sample]),
            padded_length=length,
            num_tokens=length,
            supervised_tokens=int(tokens.supervised_mask(sample).sum()),
            cost=float(length),
            filler=False,
        )
        prepared = collate(alone)
        with torch.no_grad():
            parts = micro_batch_loss(drafter, target, prepared.batch, prepared.weights, settings.objective)
        losses[sample] = float(parts.loss_sum) / float(parts.weight)
    return losses, checkpoint.name


def _checkpoint(folder: Path, before: int) -> Path:
    from dflash_pipeline.store.files import folder_faults
    from dflash_pipeline.training.checkpoint import NAME, list_checkpoints

    whole = [path for path in list_checkpoints(folder) if not folder_faults(path)]
    if not whole:
        raise Refused("no checkpoint is whole", where=str(folder), fix="leave --sample-losses out for this run")
    steps = {path: int(match[1]) for path in whole if (match := NAME.fullmatch(path.name))}
    return next((path for path in whole if steps[path] < before), whole[-1])
