"""What PyTorch really holds, counted by storages: kept for a backward pass, and at most at once. On the CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def kept_bytes(call: Callable[[], Any], *, apart_from: Iterable[torch.Tensor]) -> int:
    """Bytes that the graph of `call`'s result keeps, each storage once, without those of the tensors named."""
    others = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in others:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _result = call()
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


class Peak(TorchDispatchMode):
    """Counts the storages that operations make inside the block, and gives back those that are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self.most = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What was there before the block is not counted, nor is a view of it.
        self._known.update(storages((args, kwargs)))
        out = func(*args, **(kwargs or {}))
        for storage in storages(out):
            self._take(storage)
        return out

    def _take(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.held -= size


def storages(nested: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]
