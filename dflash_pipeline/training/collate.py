"""One micro-batch of the manifest to tensors: tokens from mapped Arrow, anchors from a hash, weights from the mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dflash_pipeline.contracts.manifest import MicroBatch
from dflash_pipeline.model.anchors import sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import (
    Positions,
    TrainingBatch,
    blocks_in_documents,
    blocks_in_rows,
    documents_of,
)
from dflash_pipeline.model.objective import Objective, planned_weights
from dflash_pipeline.store.features import FeatureStore
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
class AnchorRule:
    """How many blocks of a sample are trained, and how they are drawn."""

    share: float
    """Blocks a supervised token."""
    most: int
    """In one sample and epoch."""
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Collator:
    """Turns micro-batches into tensors; a pure function of the micro-batch and these settings."""

    tokens: TokenStore
    anchors: AnchorRule
    block_size: int
    objective: Objective
    features: FeatureStore | None = None
    """Read from disk when they are kept there."""

    def __call__(self, source: MicroBatch) -> PreparedBatch:
        batch = self._batch(source)
        slots = supervised_slots(batch.loss_mask, batch.blocks, block_size=self.block_size)
        weights = planned_weights(slots, self.objective)
        if source.filler:
            weights = torch.zeros_like(weights)
        return PreparedBatch(
            source=source,
            batch=batch,
            weights=weights,
            weight=float(weights.sum(dtype=torch.float64)),
            num_anchors=0 if source.filler else int(batch.blocks.valid.sum()),
        )

    def _batch(self, source: MicroBatch) -> TrainingBatch:
        samples = source.sample_ids.tolist()
        tokens = [self.tokens.input_ids(sample) for sample in samples]
        supervised = [self.tokens.supervised_mask(sample) for sample in samples]
        anchors = [self._anchors(mask, source.epoch, s) for mask, s in zip(supervised, samples, strict=True)]
        lengths = [row.size for row in tokens]
        width = source.padded_length
        if source.layout == "documents":
            return TrainingBatch(
                input_ids=_padded([np.concatenate(tokens)], width, np.int64),
                loss_mask=_padded([np.concatenate(supervised)], width, np.bool_),
                blocks=blocks_in_documents(anchors, lengths, width=width),
                features=self._documents_features(samples),
                documents=documents_of(lengths),
            )
        blocks = blocks_in_rows(anchors, lengths, width=width)
        return TrainingBatch(
            input_ids=_padded(tokens, width, np.int64),
            loss_mask=_padded(supervised, width, np.bool_),
            blocks=blocks,
            features=self._rows_features(samples, max(blocks.context_length, 1)),
        )

    def _documents_features(self, samples: list[int]) -> torch.Tensor | None:
        if self.features is None:
            return None
        return torch.from_numpy(np.concatenate([self.features.features(sample) for sample in samples]))[None]

    def _rows_features(self, samples: list[int], context_length: int) -> torch.Tensor | None:
        """[R, C, F]: as far as some block sees, zeros behind each sample."""
        if self.features is None:
            return None
        rows = np.zeros((len(samples), context_length, self.features.cache.width), dtype=np.float32)
        for row, sample in enumerate(samples):
            found = self.features.features(sample)[:context_length]
            rows[row, : len(found)] = found
        return torch.from_numpy(rows)

    def _anchors(self, supervised: np.ndarray, epoch: int, sample_id: int) -> Positions:
        rule = self.anchors
        return sample_anchors(
            supervised, share=rule.share, most=rule.most, seed=rule.seed, epoch=epoch, sample_id=sample_id
        )


def _padded(rows: list[np.ndarray], width: int, dtype: type[np.generic]) -> torch.Tensor:
    """[R, width], zeros behind each row."""
    padded = np.zeros((len(rows), width), dtype=dtype)
    for row, values in enumerate(rows):
        padded[row, : values.size] = values
    return torch.from_numpy(padded)
