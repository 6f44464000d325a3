"""Whole-chain runs under the real daemon: from the page, its form, its lineage, by backfill, clock and sensor.

In the order of the file: each finds what those before it have made.
"""

from __future__ import annotations

import pytest

from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.contracts.run import RunRecord
from dflash_pipeline.store.records import load_record
from tests.daemon.conftest import NUM_ROWS, Site
from tests.daemon.page import until

pytestmark = pytest.mark.slow

ASSETS = """{ assetNodes { assetKey { path } staleStatus partitionStats { numMaterialized numFailed }
  assetMaterializations(limit: 1) { runId } } }"""
CLOCK, SENSOR = "nightly_retraining", "new_data_or_target"


def assets(site: Site) -> dict[str, dict]:
    return {node["assetKey"]["path"][0]: node for node in site.page.ask(ASSETS)["assetNodes"]}


def trained(site: Site, run_id: str) -> TrainedDrafter:
    return load_record(site.chain.storage.run_record(run_id, "trained_drafter"), TrainedDrafter)


def over(site: Site, backfill: str) -> list[dict]:
    """The runs of a backfill once it is over and has succeeded; the first started first."""
    until(
        lambda: site.page.backfill_status(backfill)["status"] not in ("REQUESTED", "CANCELING"),
        seconds=240,
        what="the backfill ends",
    )
    assert site.page.backfill_status(backfill)["status"] == "COMPLETED_SUCCESS"
    return site.page.runs_of(backfill)[::-1]


def test_the_job_as_it_stands(site):
    run = site.page.launch()
    assert site.page.ended(run) == "SUCCESS"
    made = assets(site)
    assert {name for name, node in made.items() if not node["assetMaterializations"]} == set()
    assert made["epoch_manifest"]["partitionStats"] == {"numMaterialized": 2, "numFailed": 0}
    assert trained(site, run).steps_done == trained(site, run).total_steps


def test_the_form_names_every_asset_and_may_choose_more_epochs(site):
    run = site.page.launch(assets=sorted(assets(site)), choices={"epochs": 3, "max_steps": 4})
    assert site.page.ended(run) == "SUCCESS"
    assert assets(site)["epoch_manifest"]["partitionStats"] == {"numMaterialized": 3, "numFailed": 0}
    assert trained(site, run).steps_done == 4 < trained(site, run).total_steps


def test_a_backfill_of_chosen_epochs_makes_them_alone(site):
    runs = over(site, site.page.backfill(["epoch_manifest"], ["000", "001", "005"]))
    ranges = [tuple(run["tags"][f"dagster/asset_partition_range_{end}"] for end in ("start", "end")) for run in runs]
    # One run for each stretch of epochs.
    assert sorted(ranges) == [("000", "001"), ("005", "005")]
    assert assets(site)["epoch_manifest"]["partitionStats"] == {"numMaterialized": 4, "numFailed": 0}


def test_materialize_all_from_the_lineage(site):
    runs = over(site, site.page.backfill(sorted(assets(site)), ["000", "001"]))
    assert {step["path"][0] for run in runs for step in run["assetSelection"]} == set(assets(site))
    # What goes before the epochs, the epochs, what comes after: three runs, one after another.
    assert len(runs) == 3
    assert {name for name, node in assets(site).items() if node["staleStatus"] == "STALE"} == set()


def test_a_backfill_of_the_job_trains_once(site):
    before = len(list(site.chain.storage.runs.iterdir()))
    answer = site.page.job_backfill(["000", "001"])
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    runs = over(site, answer["backfillId"])
    assert {run["status"] for run in runs} == {"SUCCESS"}
    assert len(list(site.chain.storage.runs.iterdir())) == before


def test_the_clock_skips_what_a_person_has_trained_from_the_page(site):
    site.page.start_schedule(CLOCK)
    try:
        until(lambda: over_ticks(site, CLOCK), seconds=90, what="a tick")
    finally:
        site.page.stop_schedule(CLOCK)
    [tick] = over_ticks(site, CLOCK)[-1:]
    assert (tick["status"], tick["error"]) == ("SKIPPED", None)
    assert "has trained on the same sources, target and recipe already" in tick["skipReason"]


def test_the_clock_trains_new_rows_once(site):
    site.write_rows(NUM_ROWS - 4)
    number = len(site.page.runs())
    site.page.start_schedule(CLOCK)
    try:
        until(lambda: len(site.page.runs()) > number, seconds=90, what="the clock starts a run")
        run = site.page.runs()[0]
        assert site.page.ended(run["runId"]) == "SUCCESS"
        assert run["tags"]["dflash/reason"].startswith("sources, target or recipe changed")
        until(lambda: over_ticks(site, CLOCK)[0]["status"] == "SKIPPED", seconds=90, what="the next tick skips")
    finally:
        site.page.stop_schedule(CLOCK)
    assert len(site.page.runs()) == number + 1


def test_the_sensor_trains_new_rows_and_the_command_finds_them_trained(site):
    site.write_rows(NUM_ROWS - 8)
    number = len(site.page.runs())
    site.page.start_sensor(SENSOR)
    try:
        until(lambda: len(site.page.runs()) > number, seconds=150, what="the sensor starts a run")
        run = site.page.runs()[0]["runId"]
        # Beside the run of the daemon: it waits for the node, and then finds all as it should be.
        facts = site.chain.answer("run", timeout=240)
        assert site.page.ended(run) == "SUCCESS"
    finally:
        site.page.stop_sensor(SENSOR)
    assert trained(site, run).run == facts["run"]
    record = load_record(site.chain.storage.runs / facts["run"] / "run.json", RunRecord)
    assert (record.status, len(record.attempts)) == ("finished", 1)


def over_ticks(site: Site, name: str) -> list[dict]:
    return [tick for tick in site.page.ticks(name) if tick["status"] != "STARTED"]
