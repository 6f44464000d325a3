"""Which blocks of a sample are trained, and which of their slots carry a loss."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dflash_pipeline.contracts.hashing import mix
from dflash_pipeline.model.blocks import Blocks


def sample_anchors(
    supervised: NDArray[np.bool_], *, share: float, most: int, seed: int, epoch: int, sample_id: int
) -> NDArray[np.int64]:
    """Positions to draft after, ascending: supervised with a supervised successor.

    As many as `share` of the sample's supervised tokens, rounded up, and at most `most`. A function of its arguments
    alone, so that a resumed run trains the same blocks; fewer of them are some of those that more would be.
    """
    eligible = np.flatnonzero(supervised[:-1] & supervised[1:])
    # A product like 0.07 * 100 comes out a little above 7.
    wanted = min(most, math.ceil(share * int(np.count_nonzero(supervised)) - 1e-9))
    if eligible.size > wanted:
        order = np.argsort(mix(seed, epoch, sample_id, eligible), kind="stable")
        eligible = np.sort(eligible[order[:wanted]])
    return eligible.astype(np.int64)


def default_anchor_share(block_size: int) -> float:
    """Two tokens of every block: each supervised token lies in two blocks on average."""
    return min(1.0, 2 / block_size)


def supervised_slots(loss_mask_RS: Tensor, blocks: Blocks, *, block_size: int) -> Tensor:
    """[A, K] bool: slots of blocks up to the first unsupervised token or the document's end; never slot 0."""
    slot_J = torch.arange(1, block_size, device=loss_mask_RS.device)
    places_AJ = blocks.anchors[:, None] + slot_J
    labels_AJ = places_AJ.clamp(max=loss_mask_RS.numel() - 1)
    supervised_AJ = loss_mask_RS.flatten()[labels_AJ] & (places_AJ < blocks.ends[:, None])
    going_on_AJ = supervised_AJ.long().cumprod(-1).bool()
    return torch.nn.functional.pad(going_on_AJ, (1, 0))
