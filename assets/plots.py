"""Pictures where a person would look rather than read."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dflash_pipeline.contracts.corpus import LengthStatistics
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.stages import pictures


def length_histogram(statistics: LengthStatistics, boundaries: Sequence[int]) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"![lengths]({pictures.length_histogram(statistics, boundaries)})")


def efficiency_against_diversity(rows: Sequence[StrategyForecast]) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"![efficiency against diversity]({pictures.efficiency_against_diversity(rows)})")


def epoch_over_steps(manifest: EpochManifest, *, num_ranks: int) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"![epoch]({pictures.epoch_over_steps(manifest, num_ranks=num_ranks)})")
