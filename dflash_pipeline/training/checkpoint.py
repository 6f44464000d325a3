"""Checkpoints: a folder exists under its name only when it is whole. Weights in safetensors, the rest in JSON."""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.faults import fault_point, fault_write
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.objective import Objective
from dflash_pipeline.store.files import INCOMPLETE, folder_faults, new_folder, set_aside
from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.training.meter import EpochMeter
from dflash_pipeline.training.sharding import part_like, whole
from dflash_pipeline.training.spikes import SpikeState

logger = logging.getLogger(__name__)

NAME = re.compile(r"step_(\d+)")
MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointState:
    """Everything of a checkpoint that is not a tensor."""

    run: str
    plan: str
    snapshot: str
    position: Position
    global_step: int
    attempt: int
    spikes: SpikeState
    meter: EpochMeter
    skipped_in_a_row: int
    """Steps up to this one whose loss or gradient was not finite."""
    drafter: DrafterConfig
    objective: Objective


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CheckpointTensors:
    """Weights and optimiser moments by name."""

    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]


def checkpoint_name(global_step: int) -> str:
    return f"step_{global_step:07d}"


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders named as checkpoints, newest first by number. Anything else is somebody else's, and left alone."""
    found = [(int(match[1]), path) for path in folder.glob("step_*") if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda item: (item[0], item[1].name), reverse=True)]


def newest_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose hashes hold. Damaged ones are named in the log and stay where they are."""
    for path in list_checkpoints(folder):
        faults = folder_faults(path)
        if not faults:
            return path
        logger.warning("checkpoint %s is not used: %s", path.name, "; ".join(faults))
    return None


def copied_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> CheckpointTensors:
    """Copies in main memory, so that the next step may change what they were taken from.

    Of tensors in parts the whole is copied: every other rank must call `lend_tensors` meanwhile.
    """

    def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: whole(tensor.detach()).to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}

    return CheckpointTensors(model=copies(model.state_dict()), optimizer=copies(_optimizer_tensors(model, optimizer)))


def lend_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give the rank that copies this rank's parts; nothing to do where every rank holds all."""
    for tensor in (*model.state_dict().values(), *_optimizer_tensors(model, optimizer).values()):
        whole(tensor.detach())


def save_checkpoint(folder: Path, state: CheckpointState, tensors: CheckpointTensors) -> Path:
    """Write weights, optimiser and state, whole or not at all. Saving the same step again changes nothing."""
    path = folder / checkpoint_name(state.global_step)
    if path.exists() and not folder_faults(path):
        return path
    if path.exists():
        logger.warning("checkpoint %s is damaged and written again; it is kept as %s", path.name, set_aside(path).name)
    with new_folder(path, act="checkpoint") as fresh:
        fault_write()
        save_file(tensors.model, fresh / WEIGHTS)
        fault_write()
        save_file(tensors.optimizer, fresh / "optimizer.safetensors")
        save_record(fresh / "state.json", state)
    return path


def load_state(path: Path) -> CheckpointState:
    return load_record(path / "state.json", CheckpointState)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> CheckpointState:
    """Put weights and optimiser back as they were; returns the rest."""
    state = load_state(path)
    own = model.state_dict()
    weights = load_file(path / WEIGHTS)
    model.load_state_dict({name: part_like(weight, own.get(name, weight)) for name, weight in weights.items()})
    tensors = load_file(path / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        if f"step.{name}" not in tensors:
            continue  # Saved before the first update.
        slots = {key: part_like(tensors[f"{key}.{name}"], parameter) for key in MOMENTS}
        optimizer.state[parameter] = {"step": tensors[f"step.{name}"], **slots}
    return state


def prune_checkpoints(folder: Path, *, keep: int) -> None:
    """Remove all but the `keep` newest whole ones; -1 keeps all, 0 is refused. Damaged ones stay, and do not count."""
    if keep == 0 or keep < -1:
        raise Refused(
            f"keep_checkpoints {keep}", where="training.keep_checkpoints", fix="use -1 for all, or at least 1"
        )
    if keep == -1:
        return
    for leftover in folder.glob(f".step_*{INCOMPLETE}"):
        shutil.rmtree(leftover)  # Of a save or a removal that was killed.
    # Damaged ones may be the newest: counted, they would cost the only checkpoint that can be resumed from.
    whole = [path for path in list_checkpoints(folder) if not folder_faults(path)]
    for path in whole[keep:]:
        fault_point("checkpoint.before-prune")
        # Renamed first: half removed under its own name, it would count as damaged and stay for good.
        shutil.rmtree(path.rename(path.with_name(f".{path.name}{INCOMPLETE}")))


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter)
        if not state:
            continue  # No update yet: every loss so far was not finite.
        tensors[f"step.{name}"] = state["step"]
        for key in MOMENTS:
            tensors[f"{key}.{name}"] = state[key]
    return tensors
