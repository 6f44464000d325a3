"""How old the data may grow before the page says so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

from dflash_pipeline.recipe import Recipe

WATCHED = dg.AssetKey("conversations")
"""What all data come in by."""
WARNED_AFTER = 0.8
"""Share of the time after which the page warns."""


def with_freshness(assets: Sequence[dg.AssetsDefinition], recipe: Recipe) -> list[dg.AssetsDefinition]:
    """`conversations` overdue after `schedule.fresh_days` without a run that looked at the sources; none without it.

    Dagster's daemon judges it, on the page; no run is held up.
    """
    days = recipe.schedule.fresh_days
    if days is None:
        return list(assets)
    window = timedelta(days=days)
    policy = dg.FreshnessPolicy.time_window(fail_window=window, warn_window=WARNED_AFTER * window)
    return [
        asset.map_asset_specs(lambda spec: dg.apply_freshness_policy(spec, policy)) if asset.key == WATCHED else asset
        for asset in assets
    ]
