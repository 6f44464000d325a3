"""Writes checkpoints beside the steps: a step waits for a copy of the tensors, not for the disk."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import nn

from dflash_pipeline.training.checkpoint import (
    CheckpointState,
    CheckpointTensors,
    copied_tensors,
    prune_checkpoints,
    save_checkpoint,
)


class CheckpointWriter:
    """One checkpoint at a time, in the order in which they are asked for. An error is raised at the next call."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        # An attempt that was killed between a checkpoint and the pruning after it left one too many.
        prune_checkpoints(folder, keep=keep)

    def save(self, state: CheckpointState, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy what is to be saved, and return; waits only for the checkpoint before it."""
        self.wait()
        tensors = copied_tensors(model, optimizer)
        # No daemon: a process that ends in the ordinary way ends after its last checkpoint.
        self._thread = threading.Thread(target=self._write, args=(state, tensors), name="checkpoint-writer")
        self._thread.start()

    def wait(self) -> None:
        """Until everything that was asked for is on disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, state: CheckpointState, tensors: CheckpointTensors) -> None:
        try:
            save_checkpoint(self._folder, state, tensors)
            prune_checkpoints(self._folder, keep=self._keep)
        except BaseException as error:
            self._error = error
