"""Where the blocks of a micro-batch stand, in documents that lie in rows of their own or end to end in one row.

What a forward has to slice is whole numbers on the host, known before anything is on a device: nothing is read back.
Only what some block sees is computed: the context is packed, each document's up to its last anchor, without padding.

R rows, S tokens of a row, A blocks, C positions of the packed context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Positions = NDArray[np.int64]

BLOCKS_PER_CUT = 16
"""Blocks attended together. Anchors ascend, so a cut needs the context before its last anchor only; every block of it
is masked off from the others' slots, so that many of them cost more than they save."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A sample's tokens in a micro-batch: `row[first:end]`."""

    row: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Consecutive blocks of one document that are attended together, and the packed context they need."""

    first_block: int
    end_block: int
    first_context: int
    """Where the document's context begins."""
    common_context: int
    """Where the context of its first block ends: all of its blocks see as much."""
    end_context: int
    """Where the context of its last block ends."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Blocks:
    """The blocks of a micro-batch, document by document, anchors ascending in each.

    A micro-batch without any has one that sees nothing and ends before it begins: every shape stays above zero.
    """

    anchors: Tensor
    """[A] int64: row * S + position in the row."""
    ends: Tensor
    """[A] int64: where the block's document ends, counted alike."""
    context_starts: Tensor
    """[A] int64: where the document's context begins in the packed one."""
    context_ends: Tensor
    """[A] int64: where the block's own context ends; the anchor's position in its document is the difference."""
    context_positions: Tensor
    """[C] int64: of each context position, in its own document."""
    contexts: tuple[Document, ...]
    """What is packed, in this order: of every document with a block, the tokens before its last anchor."""
    cuts: tuple[Cut, ...]

    @property
    def num_context(self) -> int:
        """C: positions of the packed context."""
        return self.context_positions.shape[0]

    def to(self, device: torch.device) -> Blocks:
        return Blocks(
            anchors=self.anchors.to(device, non_blocking=True),
            ends=self.ends.to(device, non_blocking=True),
            context_starts=self.context_starts.to(device, non_blocking=True),
            context_ends=self.context_ends.to(device, non_blocking=True),
            context_positions=self.context_positions.to(device, non_blocking=True),
            contexts=self.contexts,
            cuts=self.cuts,
        )

    def pinned(self) -> Blocks:
        return replace(
            self,
            anchors=self.anchors.pin_memory(),
            ends=self.ends.pin_memory(),
            context_starts=self.context_starts.pin_memory(),
            context_ends=self.context_ends.pin_memory(),
            context_positions=self.context_positions.pin_memory(),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingBatch:
    """One micro-batch, right-padded."""

    input_ids: Tensor
    """[R, S] int64"""
    loss_mask: Tensor
    """[R, S] bool: supervised tokens"""
    documents: tuple[Document, ...]
    """Every sample, in order."""
    blocks: Blocks
    features: Tensor | None = None
    """[R, W, F], when they are not to be computed. W is any width that holds every context."""

    def to(self, device: torch.device) -> TrainingBatch:
        return TrainingBatch(
            input_ids=self.input_ids.to(device, non_blocking=True),
            loss_mask=self.loss_mask.to(device, non_blocking=True),
            documents=self.documents,
            blocks=self.blocks.to(device),
            features=None if self.features is None else self.features.to(device, non_blocking=True),
        )

    def pinned(self) -> TrainingBatch:
        """In memory that a CUDA device reads by itself, while the host goes on."""
        return replace(
            self,
            input_ids=self.input_ids.pin_memory(),
            loss_mask=self.loss_mask.pin_memory(),
            blocks=self.blocks.pinned(),
            features=None if self.features is None else self.features.pin_memory(),
        )


def in_rows(lengths: Sequence[int]) -> tuple[Document, ...]:
    """Documents of these lengths, each at the start of a row of its own."""
    return tuple(Document(row=row, first=0, end=length) for row, length in enumerate(lengths))


def end_to_end(lengths: Sequence[int]) -> tuple[Document, ...]:
    """Documents of these lengths in one row."""
    bounds = np.cumsum([0, *lengths]).tolist()
    return tuple(Document(row=0, first=first, end=end) for first, end in pairwise(bounds))


def place_blocks(anchors: Sequence[Positions], documents: Sequence[Document], *, width: int) -> Blocks:
    """Blocks at `anchors` of each document, counted from its start and ascending; `width` is S."""
    taken = [(a, document) for a, document in zip(anchors, documents, strict=True) if a.size]
    if not taken:
        return _NO_BLOCKS
    sizes = [int(a[-1]) for a, _ in taken]
    starts = np.cumsum([0, *sizes])[:-1]
    counts = [a.size for a, _ in taken]
    of_texts = [document.row * width + document.first for _, document in taken]
    of_ends = [document.row * width + document.end for _, document in taken]
    from_start_A = np.concatenate([a for a, _ in taken])
    starts_A = np.repeat(starts, counts)
    return Blocks(
        anchors=torch.from_numpy(np.repeat(of_texts, counts) + from_start_A),
        ends=torch.from_numpy(np.repeat(of_ends, counts)),
        context_starts=torch.from_numpy(starts_A),
        context_ends=torch.from_numpy(starts_A + from_start_A),
        context_positions=torch.from_numpy(np.concatenate([np.arange(size) for size in sizes])),
        contexts=tuple(
            Document(row=document.row, first=document.first, end=document.first + size)
            for size, (_, document) in zip(sizes, taken, strict=True)
        ),
        cuts=_cuts(starts_A + from_start_A, starts.tolist(), counts),
    )


def _cuts(context_ends_A: Positions, starts: Sequence[int], counts: Sequence[int]) -> tuple[Cut, ...]:
    """Cuts hold blocks of one document only, so that attention costs as much as its documents, not their square."""
    cuts = []
    first_of_document = 0
    for start, count in zip(starts, counts, strict=True):
        end_of_document = first_of_document + count
        for first in range(first_of_document, end_of_document, BLOCKS_PER_CUT):
            end = min(first + BLOCKS_PER_CUT, end_of_document)
            cuts.append(
                Cut(
                    first_block=first,
                    end_block=end,
                    first_context=start,
                    common_context=int(context_ends_A[first]),
                    end_context=int(context_ends_A[end - 1]),
                )
            )
        first_of_document = end_of_document
    return tuple(cuts)


_NO_BLOCKS = Blocks(
    anchors=torch.zeros(1, dtype=torch.int64),
    ends=torch.zeros(1, dtype=torch.int64),
    context_starts=torch.zeros(1, dtype=torch.int64),
    context_ends=torch.zeros(1, dtype=torch.int64),
    context_positions=torch.zeros(0, dtype=torch.int64),
    contexts=(Document(row=0, first=0, end=0),),
    cuts=(Cut(first_block=0, end_block=1, first_context=0, common_context=0, end_context=0),),
)
