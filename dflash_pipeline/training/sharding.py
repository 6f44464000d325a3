"""Weights in parts: each rank holds one, and a layer is whole on all ranks only while it runs (FSDP2).

Sharding is how a run is launched, not what it trains: sums over ranks are the same but for rounding, and checkpoints
hold whole tensors, so that a run may go on with its drafter or target sharded otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.loading import Dtype, load_causal_lm
from dflash_pipeline.model.target import FrozenTarget, decoder_layers
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.settings import DrafterSharding, TargetSharding

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def parallel_drafter(drafter: Drafter, ranks: Ranks, sharding: DrafterSharding) -> nn.Module:
    """The drafter with gradients averaged over ranks during backward, with `fsdp` in place with parameters in parts.

    Before the optimiser, which must see the parameters as they will be. Alone, the drafter as it is.
    """
    if sharding == "ddp" or ranks.world_size == 1:
        return ranks.parallel(drafter)
    mesh = _mesh(ranks)
    for module in (*drafter.layers, drafter):
        fully_shard(module, mesh=mesh)
    return drafter


def load_target(path: Path, ranks: Ranks, sharding: TargetSharding, *, tap_layer_ids: tuple[int, ...]) -> FrozenTarget:
    """The target, with `fsdp` each of its layers in parts.

    The embedding table and the output head stay whole on every rank: they are read a chunk of slots at a time, and
    ranks differ in how many chunks they have, so that a rank with more would wait for the others for good. For the
    same reason every rank must run the target equally often: a micro-batch in one pass, not a document at a time.
    """
    dtype: Dtype = "bfloat16" if ranks.device.type == "cuda" else "float32"
    if sharding == "none" or ranks.world_size == 1:
        return FrozenTarget.load(path, device=str(ranks.device), dtype=dtype, tap_layer_ids=tap_layer_ids)
    model = load_causal_lm(path, dtype=dtype)
    # Before sharding: its cut trunk is a shallow copy, which a sharded module refuses, and shares the hooks set later.
    target = FrozenTarget(model, tap_layer_ids=tap_layer_ids)
    _shard_layers(model, ranks)
    return target


def _shard_layers(model: PreTrainedModel, ranks: Ranks) -> None:
    """In place. From main memory and layer by layer, so that a device never holds more than one whole layer."""
    mesh = _mesh(ranks)
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    model.to(ranks.device)  # type: ignore[arg-type]
    # One root over all layers lets a layer be gathered while the one before it runs. It has no parameters of its own.
    base = model.base_model
    root: FSDPModule = fully_shard(base, mesh=mesh, ignored_params=set(base.parameters()))

    def forget_the_pass(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        root.reset_iter_state()

    # What a forward notes down is cleared by the backward after it, and here there is none: it would grow for ever.
    base.register_forward_hook(forget_the_pass)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which this rank holds a part. Every rank must call it, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(tensor: Tensor, own: Tensor) -> Tensor:
    """Of a whole tensor what this rank holds of `own`, on its device. Nothing is exchanged."""
    if isinstance(own, DTensor):
        return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
    return tensor.to(own.device)


def _mesh(ranks: Ranks) -> DeviceMesh:
    return init_device_mesh(ranks.device.type, (ranks.world_size,))
