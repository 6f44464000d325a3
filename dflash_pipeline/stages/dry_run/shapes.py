"""Sizes of the tensors that a micro-batch becomes, for all micro-batches of an epoch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.model.blocks import BLOCKS_PER_CUT

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchShapes:
    """One entry a micro-batch, in the manifest's order. Counts, as float64: their products outgrow nothing."""

    padded_tokens: Floats
    """What the target runs."""
    context: Floats
    """Positions of the packed context: tokens of the samples that have blocks."""
    blocks: Floats
    cells: Floats
    """Entries of the attention masks, added up."""


def batch_shapes(
    manifest: EpochManifest, samples: SampleLengths, *, block_size: int, anchor_share: float, anchors_per_sample: int
) -> BatchShapes:
    """Sizes of every micro-batch, as `model/anchors.py` and `model/blocks.py` make them.

    Upper bounds: a sample is taken to have as many anchors as its supervised tokens allow, and a context to reach to
    its end.
    """
    length, supervised = (
        column[manifest.sample_ids].astype(np.float64) for column in (samples.num_tokens, samples.num_supervised)
    )
    wanted = np.minimum(np.ceil(anchor_share * supervised - 1e-9), anchors_per_sample)
    anchors = np.clip(wanted, 0.0, np.maximum(supervised - 1, 0.0))
    context = np.where(anchors > 0, length, 0.0)
    cells = _mask_cells(anchors, context, block_size)
    summed = [np.add.reduceat(of_samples, manifest.offsets[:-1]) for of_samples in (context, anchors, cells)]
    return BatchShapes(
        padded_tokens=manifest.padded_tokens.ravel().astype(np.float64),
        context=summed[0],
        blocks=np.maximum(summed[1], 1.0),
        cells=summed[2],
    )


def _mask_cells(anchors: Floats, context: Floats, block_size: int) -> Floats:
    """Of each sample: slots of a cut x (context before its last anchor, and those slots), summed over its cuts.

    Anchors are taken to lie evenly, so that the n-th cut ends after n / (number of cuts) of the context.
    """
    full, rest = np.divmod(anchors, BLOCKS_PER_CUT)
    before_full = context * BLOCKS_PER_CUT / np.maximum(anchors, 1.0) * full * (full + 1) / 2
    on_context = BLOCKS_PER_CUT * before_full + rest * context
    on_slots = BLOCKS_PER_CUT**2 * full + rest**2
    return block_size * on_context + block_size**2 * on_slots
