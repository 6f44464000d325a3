"""An export that drafts otherwise than its report says is no candidate for champion."""

from dataclasses import replace

import dagster as dg
import pytest

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.plan import epoch_range_tags
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.stages import carry_report


@pytest.mark.parametrize("factor", [1.0, 1.3], ids=["as reported", "otherwise"])
def test_the_last_check_comes_before_the_champion(chain, tmp_path, monkeypatch, factor):
    carried = carry_report.carried_acceptance

    def falsified(*given, **named):
        true = carried(*given, **named)
        prompts = tuple(replace(prompt, mean=factor * prompt.mean) for prompt in true.prompts)
        return replace(true, mean=factor * true.mean, interval=(1.0, float(true.block_size)), prompts=prompts)

    monkeypatch.setattr(carry_report, "carried_acceptance", falsified)
    copy = chain.copy(tmp_path / "storage")
    job = definitions_for(Workbench(recipe=copy.recipe, storage=copy.storage)).resolve_job_def("whole_chain")
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            instance=instance,
            tags=epoch_range_tags(2),
            # The export, too: the record of the one before names the folder that all tests share.
            asset_selection=[dg.AssetKey(name) for name in ("exported_drafter", "acceptance_report", "champion")],
            raise_on_error=False,
        )
    [check] = [e for e in result.get_asset_check_evaluations() if e.check_name == "export_drafts_as_reported"]
    started = {event.step_key for event in result.all_events if event.is_step_start}
    assert check.passed is (factor == 1.0)
    assert ("champion" in started) is (factor == 1.0)
    assert check.passed or "acceptance failed" in check.description
