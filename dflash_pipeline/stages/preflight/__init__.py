"""What can be known to be wrong before work starts: every fault at once, in seconds, and nothing starts with one.

target, weights   a target's folder, read as far as it can be; no weight is loaded
sample            the first rows of each source, read and tokenised as the stages will
machine           disk, memory, devices, ports: measured once
subject           all of this for one recipe
drafter, warm_start, mask_token, text, sources, responses, batching, disk, memory    the checks, giving faults
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.preflight.batching import check_batching, check_lengths, check_ranks
from dflash_pipeline.stages.preflight.disk import check_disk, check_features, disk_needs
from dflash_pipeline.stages.preflight.drafter import check_shape, check_taps, check_whole_drafter
from dflash_pipeline.stages.preflight.fault import Fault, refuse
from dflash_pipeline.stages.preflight.machine import Machine, gib, this_machine
from dflash_pipeline.stages.preflight.mask_token import check_mask_token
from dflash_pipeline.stages.preflight.memory import check_devices, check_memory, check_port, check_shared_memory
from dflash_pipeline.stages.preflight.responses import check_endpoint_key
from dflash_pipeline.stages.preflight.sources import check_coverage, check_prompts, check_sources
from dflash_pipeline.stages.preflight.subject import Subject, gather
from dflash_pipeline.stages.preflight.text import check_target, check_vocabulary
from dflash_pipeline.stages.preflight.warm_start import check_champion
from dflash_pipeline.store.layout import Storage

Check = Callable[[Subject], Iterator[Fault]]


OF_TRAINING: tuple[Check, ...] = (
    check_target,
    check_vocabulary,
    check_shape,
    check_taps,
    check_mask_token,
    check_whole_drafter,
    check_champion,
    check_batching,
    check_ranks,
    check_disk,
    check_memory,
    check_devices,
    check_shared_memory,
    check_port,
)
OF_DATA: tuple[Check, ...] = (
    check_sources,
    check_coverage,
    check_prompts,
    check_lengths,
    check_features,
    check_endpoint_key,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Every fault, and what was looked at."""

    faults: tuple[Fault, ...]
    seen: tuple[str, ...]


def look_over(
    recipe: Recipe,
    storage: Storage,
    *,
    num_ranks: int | None = None,
    machine: Machine | None = None,
    only_training: bool = False,
) -> Findings:
    """Look at everything that a whole run needs, or at what training on a finished plan needs. Writes nothing.

    Without `num_ranks` they are the recipe's; without a `machine` this one is measured.
    """
    subject = gather(
        recipe,
        storage,
        num_ranks=num_ranks or recipe.training.num_ranks,
        machine=machine or this_machine(storage, device=recipe.training.device),
        with_data=not only_training,
    )
    checks = OF_TRAINING if only_training else (*OF_TRAINING, *OF_DATA)
    # One thing may be missed by several checks in the same words.
    faults = tuple(dict.fromkeys(fault for check in checks for fault in check(subject)))
    return Findings(faults=faults, seen=tuple(_seen(subject)))


def find_faults(recipe: Recipe, storage: Storage, *, machine: Machine | None = None) -> tuple[Fault, ...]:
    """Every fault of a recipe that can be known before work starts; `refuse` makes one refusal of them."""
    return look_over(recipe, storage, machine=machine).faults


def check_training(recipe: Recipe, storage: Storage, *, num_ranks: int) -> None:
    """Refuse to start ranks where there is any fault but of the sources: the plan is made, and they may be gone."""
    found = look_over(recipe, storage, num_ranks=num_ranks, only_training=True)
    refuse(found.faults, recipe_name=recipe.name)


def _seen(subject: Subject) -> Iterator[str]:
    target, machine = subject.target, subject.machine
    if target.shape is not None and target.weights is not None:
        yield (
            f"target: {target.shape.num_layers} layers, {target.shape.vocab_size:,} ids, "
            f"{target.weights.num_parameters:,} weights"
        )
    if subject.drafter is not None:
        yield f"drafter: taps {list(subject.drafter.tap_layer_ids)}, mask token {subject.drafter.mask_token_id}"
    for sample in subject.samples:
        tokens = sample.all_forms
        supervised = f", {tokens.num_supervised / tokens.num_tokens:.0%} supervised" if tokens.num_tokens else ""
        yield (
            f"{sample.where}: {sample.num_rows:,} rows of {sample.num_files_read} files (of {sample.num_files:,}), "
            f"{tokens.num_tokens:,} tokens{supervised}"
        )
    yield f"ranks: {subject.num_ranks} for {subject.recipe.batching.slots_per_step} slots"
    needed = gib(sum(disk_needs(subject).values()))
    yield f"disk: at least {needed} to be written, {gib(machine.free_disk)} free"
    yield f"memory: {gib(subject.target_bytes)} a target and process, {gib(machine.free_memory)} available"
