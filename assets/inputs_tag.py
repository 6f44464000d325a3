"""What a run was started for, noted on the run: so that clock and sensor know what has been trained."""

from __future__ import annotations

import dagster as dg

from dflash_pipeline.assets.resources import Workbench

INPUTS_TAG = "dflash/inputs"
"""Of a run: the digest of what it was started for."""


def note_inputs(context: dg.AssetExecutionContext, workbench: Workbench) -> None:
    """Tag this run with the digest of its inputs; nothing where whoever started it has done so."""
    from dflash_pipeline.stages.inputs import inputs_digest

    if INPUTS_TAG not in context.run.tags:
        digest = inputs_digest(workbench.recipe, workbench.storage)
        context.instance.add_run_tags(context.run_id, {INPUTS_TAG: digest})
