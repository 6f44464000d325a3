"""Where blocks stand in a micro-batch: in rows with padding behind, or in one row of documents laid end to end.

Built from whole numbers on the host, before anything is on a device: what a forward has to slice is known then, and
nothing has to be read back.

R rows, S tokens of a row, A blocks of a row, C context positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Positions = NDArray[np.int64]

BLOCKS_PER_CUT = 64
"""Blocks attended together. Anchors ascend, so a cut needs the context before its last anchor only, and a mask grows
with the square of this number, not of the blocks of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Consecutive blocks of every row that are attended together, and the context they need."""

    first_block: int
    end_block: int
    first_context: int
    end_context: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Blocks:
    """The blocks of a micro-batch. Places without a block are not valid, and come last in their row."""

    anchors: Tensor
    """[R, A] int64, ascending in each row: positions in the row."""
    valid: Tensor
    """[R, A] bool"""
    starts: Tensor
    """[R, A] int64: where in the row the block's document begins."""
    ends: Tensor
    """[R, A] int64: where it ends."""
    positions: Tensor
    """[S] int64: of each token of a row, in its own document."""
    cuts: tuple[Cut, ...]

    @property
    def context_length(self) -> int:
        """Positions from the row's start that any block sees."""
        return max(cut.end_context for cut in self.cuts)

    def to(self, device: torch.device) -> Blocks:
        return Blocks(
            anchors=self.anchors.to(device, non_blocking=True),
            valid=self.valid.to(device, non_blocking=True),
            starts=self.starts.to(device, non_blocking=True),
            ends=self.ends.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            cuts=self.cuts,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingBatch:
    """One micro-batch, right-padded."""

    input_ids: Tensor
    """[R, S] int64"""
    loss_mask: Tensor
    """[R, S] bool: supervised tokens"""
    blocks: Blocks
    features: Tensor | None = None
    """[R, C, F] of the context, when they are not to be computed."""
    documents: tuple[tuple[int, int], ...] = ()
    """Of one row of documents, where each begins and ends. Empty when every row is a document of its own."""

    def to(self, device: torch.device) -> TrainingBatch:
        return TrainingBatch(
            input_ids=self.input_ids.to(device, non_blocking=True),
            loss_mask=self.loss_mask.to(device, non_blocking=True),
            blocks=self.blocks.to(device),
            features=None if self.features is None else self.features.to(device, non_blocking=True),
            documents=self.documents,
        )


def blocks_in_rows(anchors: Sequence[Positions], lengths: Sequence[int], *, width: int) -> Blocks:
    """Blocks of rows of `width`, each one document of `lengths[r]` tokens from the row's start."""
    most = max(1, *(a.size for a in anchors))
    anchors_RA = np.zeros((len(anchors), most), dtype=np.int64)
    valid_RA = np.zeros((len(anchors), most), dtype=np.bool_)
    for row, chosen in enumerate(anchors):
        anchors_RA[row, : chosen.size] = chosen
        valid_RA[row, : chosen.size] = True
    cuts = []
    for first in range(0, most, BLOCKS_PER_CUT):
        end = min(first + BLOCKS_PER_CUT, most)
        last = int(anchors_RA[:, first:end].max())
        cuts.append(Cut(first_block=first, end_block=end, first_context=0, end_context=last))
    ends_RA = np.repeat(np.asarray(lengths, dtype=np.int64)[:, None], most, axis=1)
    return Blocks(
        anchors=torch.from_numpy(anchors_RA),
        valid=torch.from_numpy(valid_RA),
        starts=torch.zeros(anchors_RA.shape, dtype=torch.int64),
        ends=torch.from_numpy(ends_RA),
        positions=torch.arange(width),
        cuts=tuple(cuts),
    )


def blocks_in_documents(anchors: Sequence[Positions], lengths: Sequence[int], *, width: int) -> Blocks:
    """Blocks of one row of `width` in which documents of these lengths lie end to end; anchors count from their own."""
    bounds = np.cumsum([0, *lengths])
    counts = [a.size for a in anchors]
    if not sum(counts):
        return blocks_in_rows([np.zeros(0, dtype=np.int64)], [width], width=width)
    starts_A = np.repeat(bounds[:-1], counts)
    positions = np.arange(width) - np.repeat(np.append(bounds[:-1], bounds[-1]), [*lengths, width - bounds[-1]])
    anchors_A = np.concatenate(anchors) + starts_A
    return Blocks(
        anchors=torch.from_numpy(anchors_A)[None],
        valid=torch.ones(1, anchors_A.size, dtype=torch.bool),
        starts=torch.from_numpy(starts_A)[None],
        ends=torch.from_numpy(np.repeat(bounds[1:], counts))[None],
        positions=torch.from_numpy(positions),
        cuts=_cuts_of_documents(anchors_A, counts, bounds),
    )


def documents_of(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Where documents of these lengths begin and end when they lie end to end."""
    bounds = np.cumsum([0, *lengths]).tolist()
    return tuple(pairwise(bounds))


def _cuts_of_documents(anchors_A: Positions, counts: Sequence[int], bounds: Positions) -> tuple[Cut, ...]:
    """Cuts hold blocks of one document only, so that attention costs as much as its documents, not their square."""
    cuts = []
    block = 0
    for document, count in enumerate(counts):
        for first in range(block, block + count, BLOCKS_PER_CUT):
            end = min(first + BLOCKS_PER_CUT, block + count)
            cuts.append(
                Cut(
                    first_block=first,
                    end_block=end,
                    first_context=int(bounds[document]),
                    end_context=int(anchors_A[end - 1]),
                )
            )
        block += count
    return tuple(cuts)
