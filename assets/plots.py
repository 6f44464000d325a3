"""Pictures where a person would look rather than read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.stages import pictures

if TYPE_CHECKING:
    from dflash_pipeline.evaluation.acceptance import AcceptanceReport


def length_histogram(statistics: LengthStatistics, boundaries: Sequence[int]) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"![lengths]({pictures.length_histogram(statistics, boundaries)})")


def efficiency_against_diversity(rows: Sequence[StrategyForecast]) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"![efficiency against diversity]({pictures.efficiency_against_diversity(rows)})")


def acceptance_by_position(untrained: AcceptanceReport, trained: AcceptanceReport) -> dg.MetadataValue:
    from dflash_pipeline.stages.acceptance_pictures import acceptance_picture

    return dg.MetadataValue.md(f"![acceptance]({acceptance_picture(untrained, trained)})")


def epoch_over_steps(manifest: EpochManifest, *, num_ranks: int) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"![epoch]({pictures.epoch_over_steps(manifest, num_ranks=num_ranks)})")
