"""What the pages of assets and checks say: numbers with units, finite, of one type for ever, and pictures that fit."""

import base64
import math
import re
from collections.abc import Iterator

import dagster as dg
import pytest

from dflash_pipeline.assets.links import MLFLOW_PAGE, mlflow_link
from dflash_pipeline.assets.metadata import COUNTS, NOT_FINITE, UNITS, numbers
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.training.run_page import DAGSTER_PAGE, DAGSTER_RUN, page_tags

BETWEEN_0_AND_1 = ("share", "fraction", "efficiency")
MOST_OF_A_PICTURE = 100_000
MOST_OF_A_PAGE = 500_000
PICTURES = {
    ("length_statistics", "histogram"),
    ("bucket_boundaries", "histogram"),
    ("bucket_boundaries", "efficiency_against_buckets"),
    ("batching_forecast", "picture"),
    ("epoch_manifest", "over_steps"),
    ("trained_drafter", "loss"),
    ("acceptance_report", "acceptance"),
    ("run_comparison", "loss"),
    ("run_comparison", "acceptance"),
    ("run_comparison", "epochs"),
}


@pytest.fixture(scope="module")
def pages(chain) -> list[tuple[str, dict[str, dg.MetadataValue]]]:
    """Name and metadata of every materialisation of a real run."""
    with dg.DagsterInstance.from_config(str(chain.storage.dagster_home)) as instance:
        found = [
            (key.to_user_string(), dict(record.asset_materialization.metadata))
            for key in instance.all_asset_keys()
            for record in instance.fetch_materializations(key, limit=10).records
        ]
    assert len({name for name, _ in found}) == 13
    return found


def test_every_number_has_a_unit_or_is_a_count_and_is_finite(pages):
    for asset, key, value in numbers_of(pages):
        last = key.split("_")[-1]
        assert (key in COUNTS) != (last in UNITS), f"{asset}: {key}"
        assert math.isfinite(value), f"{asset}: {key}"
        if key in COUNTS:
            assert isinstance(value, int), f"{asset}: {key}"
        if last in BETWEEN_0_AND_1:
            assert 0 <= value <= 1, f"{asset}: {key}"


def test_no_cell_of_a_table_is_nan_or_infinite(pages):
    cells = [
        (asset, key, cell)
        for asset, metadata in pages
        for key, value in metadata.items()
        if isinstance(value, dg.TableMetadataValue)
        for record in value.records
        for cell in record.data.values()
    ]
    assert len(cells) > 50
    assert [found for found in cells if isinstance(found[2], float) and not math.isfinite(found[2])] == []


def test_the_pictures_are_there_and_have_words_and_fit_the_page(pages):
    pictures = {}
    for asset, metadata in pages:
        for key, value in metadata.items():
            text = str(value.value)
            if found := re.fullmatch(r"!\[([^\]]+)\]\(data:image/png;base64,([^)]+)\)", text):
                pictures[asset, key] = base64.b64decode(found[2])
        assert sum(len(str(value.value)) for value in metadata.values()) < MOST_OF_A_PAGE, asset
    assert set(pictures) == PICTURES
    assert all(png.startswith(b"\x89PNG") and len(png) < MOST_OF_A_PICTURE for png in pictures.values())


def test_what_is_not_finite_is_told_in_words_and_leaves_no_other_type_under_its_key():
    found = numbers({"last_loss": math.nan, "first_loss": 3.0, "peak_share": None, "hours": math.inf})
    assert {key: value.value for key, value in found.items()} == {
        "first_loss": 3.0,
        NOT_FINITE: "last_loss is nan, hours is inf",
    }
    assert NOT_FINITE not in numbers({"first_loss": 3.0})


def test_a_run_leads_to_its_page_in_mlflow_and_back(chain, monkeypatch):
    workbench = Workbench(recipe=chain.recipe, storage=chain.storage)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(MLFLOW_PAGE, raising=False)
    assert "`dflash ui`" in mlflow_link(workbench, "abc").value
    assert "`dflash sync`" in mlflow_link(workbench, None).value
    monkeypatch.setenv(MLFLOW_PAGE, "http://127.0.0.1:5050")
    assert mlflow_link(workbench, "abc").value == "[abc](http://127.0.0.1:5050/#/runs/abc)"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://tracking.example/")
    assert mlflow_link(workbench, "abc").value == "[abc](https://tracking.example/#/runs/abc)"


def test_the_mlflow_run_names_the_page_of_its_dagster_run_where_it_is_known(chain, monkeypatch):
    from dflash_pipeline.store.records import load_record
    from dflash_pipeline.training.settings import LaunchConfig

    config = load_record(chain.storage.runs / chain.facts["run"] / "launch.json", LaunchConfig)
    monkeypatch.setenv(DAGSTER_RUN, "1234")
    monkeypatch.delenv(DAGSTER_PAGE, raising=False)
    assert "dflash.dagster_page" not in page_tags(config)
    monkeypatch.setenv(DAGSTER_PAGE, "http://127.0.0.1:3000")
    assert page_tags(config)["dflash.dagster_page"] == "http://127.0.0.1:3000/runs/1234"
    monkeypatch.delenv(DAGSTER_RUN)
    assert "dflash.dagster_page" not in page_tags(config)


def numbers_of(pages) -> Iterator[tuple[str, str, float]]:
    for asset, metadata in pages:
        for key, value in metadata.items():
            if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue):
                yield asset, key, value.value
