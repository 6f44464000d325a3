"""The weights that a warm run begins with: a copy in its own folder, so that it begins alike whoever is champion."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.export import WEIGHTS, read_tensors
from dflash_pipeline.store.files import file_sha256
from dflash_pipeline.training.settings import WarmStart
from dflash_pipeline.training.sharding import part_like

logger = logging.getLogger(__name__)


def first_weights_folder(run_dir: Path) -> Path:
    """Weights and config.json as the champion's export has them."""
    return run_dir / "first_weights"


def load_first_weights(run_dir: Path, start: WarmStart, model: nn.Module) -> None:
    """Put the weights of a warm start into the model, on every rank what it holds of them; exact in float32.

    Refused when they are not there, or are not those that name the run.
    """
    folder = first_weights_folder(run_dir)
    if not (folder / WEIGHTS).is_file() or file_sha256(folder / WEIGHTS) != start.weights:
        raise Refused(
            f"the weights of champion {start.run} are not here",
            where=str(folder),
            fix="run the recipe again: they are copied anew from exports/",
        )
    tensors = read_tensors(folder)
    own = model.state_dict()
    model.load_state_dict({name: part_like(weight, own.get(name, weight)) for name, weight in tensors.items()})
    logger.info("the first weights are those of champion %s", start.run)
