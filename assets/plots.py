"""Pictures where a person would look rather than read, each with words for who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.contracts.manifest import EpochManifest

if TYPE_CHECKING:
    from dflash_pipeline.evaluation.acceptance import AcceptanceReport


def picture(words: str, address: str) -> dg.MetadataValue:
    """Markdown that the page opens in a dialog."""
    return dg.MetadataValue.md(f"![{words}]({address})")


def length_histogram(statistics: LengthStatistics, boundaries: Sequence[int]) -> dg.MetadataValue:
    from dflash_pipeline.stages import pictures

    return picture("lengths", pictures.length_histogram(statistics, boundaries))


def efficiency_against_buckets(efficiencies: Sequence[float], *, chosen: int) -> dg.MetadataValue:
    from dflash_pipeline.stages import pictures

    words = f"padding efficiency against number of buckets: {efficiencies[chosen - 1]:.3f} with the chosen {chosen}"
    return picture(words, pictures.efficiency_against_buckets(efficiencies, chosen=chosen))


def efficiency_against_diversity(rows: Sequence[StrategyForecast]) -> dg.MetadataValue:
    from dflash_pipeline.stages import pictures

    return picture("speed of every strategy against its diversity", pictures.efficiency_against_diversity(rows))


def acceptance_by_position(untrained: AcceptanceReport, trained: AcceptanceReport) -> dg.MetadataValue:
    from dflash_pipeline.stages.acceptance_pictures import acceptance_picture

    return picture("acceptance by drafted slot, untrained and trained", acceptance_picture(untrained, trained))


def epoch_over_steps(manifest: EpochManifest, *, num_ranks: int) -> dg.MetadataValue:
    from dflash_pipeline.stages import pictures

    words = f"lengths and cost of ranks over the {manifest.num_steps} steps of epoch {manifest.epoch}"
    return picture(words, pictures.epoch_over_steps(manifest, num_ranks=num_ranks))


def loss_with_spikes(run_dir: Path) -> dg.MetadataValue:
    from dflash_pipeline.stages.pictures_training import run_loss_picture

    return picture("loss over steps with its spikes", run_loss_picture(run_dir))
