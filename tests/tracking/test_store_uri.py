from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.tracking.store_uri import artifact_location, server_artifacts, server_uri, tracking_uri

DEMO = Path(__file__).parents[2] / "recipes" / "demo.yaml"


def test_addresses_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("store")) == f"sqlite:///{tmp_path}/store/mlflow/mlflow.db"
    assert artifact_location(Path("my store")) == f"file://{tmp_path}/my%20store/mlflow/artifacts"


def test_a_path_that_would_be_cut_is_refused(tmp_path: Path):
    with pytest.raises(Refused, match="question mark"):
        tracking_uri(tmp_path / "what?")


def test_the_recipe_goes_before_the_environment_and_both_before_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    own = server_uri(None, tmp_path)
    assert (own, server_artifacts(own, tmp_path)) == (tracking_uri(tmp_path), artifact_location(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://of-the-environment")
    assert server_uri(None, tmp_path) == "https://of-the-environment"
    assert server_uri("http://of-the-recipe:5000", tmp_path) == "http://of-the-recipe:5000"
    assert server_artifacts("http://of-the-recipe:5000", tmp_path) is None
    # Another database keeps no files: without a place for them MLflow would take the working directory.
    assert server_artifacts("postgresql+psycopg2:///mlflow", tmp_path) == artifact_location(tmp_path)


@pytest.mark.parametrize("given", ["https://me:hush@host", "https://hush@host/path", "postgresql://me:hush@host/db"])
@pytest.mark.parametrize("source", ["recipe", "environment"])
def test_a_password_in_an_address_is_refused_and_not_repeated(
    given: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    with pytest.raises(Refused, match="MLFLOW_TRACKING_USERNAME") as refusal:
        server_uri(given if source == "recipe" else None, tmp_path)
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize("override", ["tracking.uri=https://me:hush@host", "tracking.uri=http://hush@host/x"])
def test_a_recipe_with_a_password_is_refused_and_it_is_not_repeated(override: str):
    with pytest.raises(Refused, match=r"tracking\.uri: an address with a user or a password") as refusal:
        load_recipe(DEMO, [override])
    assert "hush" not in str(refusal.value)
    assert load_recipe(DEMO, ["tracking.uri=https://host:5000/mlflow"]).tracking.uri == "https://host:5000/mlflow"


def test_it_needs_no_mlflow():
    modules = "dflash_pipeline.tracking.store_uri, dflash_pipeline.tracking.points"
    script = f"import sys, {modules}; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
