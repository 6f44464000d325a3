"""One micro-batch of the manifest to tensors: tokens from mapped Arrow, anchors from a hash, weights from the mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dflash_pipeline.contracts.manifest import MicroBatch
from dflash_pipeline.model.anchors import sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import Document, Positions, TrainingBatch, end_to_end, in_rows, place_blocks
from dflash_pipeline.model.objective import Objective, planned_weights
from dflash_pipeline.store.features import FeatureStore
from dflash_pipeline.store.tokens import TokenStore


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedBatch:
    """A micro-batch ready to run. A filler's weights are all zero."""

    source: MicroBatch
    batch: TrainingBatch
    weights: torch.Tensor
    """[A, K] float32"""
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
    pin_memory: bool = False
    """For a CUDA device, which then copies while the host prepares."""

    def __call__(self, source: MicroBatch) -> PreparedBatch:
        batch = self._batch(source)
        slots = supervised_slots(batch.loss_mask, batch.blocks, block_size=self.block_size)
        weights = planned_weights(slots, self.objective)
        if source.filler:
            weights = torch.zeros_like(weights)
        return PreparedBatch(
            source=source,
            batch=batch.pinned() if self.pin_memory else batch,
            weights=weights,
            weight=float(weights.sum(dtype=torch.float64)),
            num_anchors=0 if source.filler else int((slots.any(-1)).sum()),
        )

    def _batch(self, source: MicroBatch) -> TrainingBatch:
        samples = source.sample_ids.tolist()
        tokens = [self.tokens.input_ids(sample) for sample in samples]
        supervised = [self.tokens.supervised_mask(sample) for sample in samples]
        anchors = [self._anchors(mask, source.epoch, s) for mask, s in zip(supervised, samples, strict=True)]
        lengths = [row.size for row in tokens]
        width = source.padded_length
        if source.layout == "documents":
            documents = end_to_end(lengths)
            tokens, supervised = [np.concatenate(tokens)], [np.concatenate(supervised)]
        else:
            documents = in_rows(lengths)
        blocks = place_blocks(anchors, documents, width=width)
        return TrainingBatch(
            input_ids=_padded(tokens, width, np.int64),
            loss_mask=_padded(supervised, width, np.bool_),
            documents=documents,
            blocks=blocks,
            features=self._kept_features(samples, documents, contexts=blocks.contexts),
        )

    def _kept_features(
        self, samples: list[int], documents: tuple[Document, ...], *, contexts: tuple[Document, ...]
    ) -> torch.Tensor | None:
        """[R, W, F]: as far as some block sees, zeros behind each document."""
        if self.features is None:
            return None
        num_rows, width = documents[-1].row + 1, max(1, *(context.end for context in contexts))
        rows = np.zeros((num_rows, width, self.features.cache.width), dtype=np.float32)
        for sample, document in zip(samples, documents, strict=True):
            end = min(document.end, width)
            if end > document.first:
                rows[document.row, document.first : end] = self.features.features(sample)[: end - document.first]
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
