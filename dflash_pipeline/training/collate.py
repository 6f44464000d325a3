"""One micro-batch of the manifest to tensors: tokens from mapped Arrow, anchors from a hash, weights from the mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dflash_pipeline.contracts.manifest import MicroBatch
from dflash_pipeline.model.objective import TrainingBatch, sample_anchors, slot_weights
from dflash_pipeline.store.tokens import TokenStore


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedBatch:
    """A micro-batch ready to run. A filler's weights are all zero."""

    source: MicroBatch
    batch: TrainingBatch
    weights: torch.Tensor
    """[R, A, K] float32"""
    weight: float
    """Sum of `weights`, in float64."""
    num_anchors: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Collator:
    """Turns micro-batches into tensors; a pure function of the micro-batch and these settings."""

    tokens: TokenStore
    anchors_per_sample: int
    block_size: int
    decay: float
    seed: int

    def __call__(self, source: MicroBatch) -> PreparedBatch:
        batch = self._batch(source)
        weights = slot_weights(
            batch.loss_mask, batch.lengths, batch.anchors, batch.valid, block_size=self.block_size, decay=self.decay
        )
        if source.filler:
            weights = torch.zeros_like(weights)
        return PreparedBatch(
            source=source,
            batch=batch,
            weights=weights,
            weight=float(weights.sum(dtype=torch.float64)),
            num_anchors=0 if source.filler else int(batch.valid.sum()),
        )

    def _batch(self, source: MicroBatch) -> TrainingBatch:
        rows, width = source.sample_ids.size, source.padded_length
        ids = np.zeros((rows, width), dtype=np.int64)
        mask = np.zeros((rows, width), dtype=np.bool_)
        lengths = np.zeros(rows, dtype=np.int64)
        anchors = []
        for row, sample_id in enumerate(source.sample_ids.tolist()):
            tokens = self.tokens.input_ids(sample_id)
            supervised = self.tokens.supervised_mask(sample_id)
            lengths[row] = tokens.size
            ids[row, : tokens.size] = tokens
            mask[row, : tokens.size] = supervised
            anchors.append(self._anchors(supervised, source.epoch, sample_id))
        most = max(1, *(a.size for a in anchors))
        anchors_RA = np.zeros((rows, most), dtype=np.int64)
        valid_RA = np.zeros((rows, most), dtype=np.bool_)
        for row, chosen in enumerate(anchors):
            anchors_RA[row, : chosen.size] = chosen
            valid_RA[row, : chosen.size] = True
        return TrainingBatch(
            input_ids=torch.from_numpy(ids),
            loss_mask=torch.from_numpy(mask),
            lengths=torch.from_numpy(lengths),
            anchors=torch.from_numpy(anchors_RA),
            valid=torch.from_numpy(valid_RA),
        )

    def _anchors(self, supervised: np.ndarray, epoch: int, sample_id: int) -> np.ndarray:
        return sample_anchors(
            supervised, max_anchors=self.anchors_per_sample, seed=self.seed, epoch=epoch, sample_id=sample_id
        )
