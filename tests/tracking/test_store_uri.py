from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri


def test_addresses_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path("store")) == f"sqlite:///{tmp_path}/store/mlflow/mlflow.db"
    assert artifact_location(Path("my store")) == f"file://{tmp_path}/my%20store/mlflow/artifacts"


def test_a_path_that_would_be_cut_is_refused(tmp_path: Path):
    with pytest.raises(Refused, match="question mark"):
        tracking_uri(tmp_path / "what?")


def test_it_needs_no_mlflow():
    modules = "dflash_pipeline.tracking.store_uri, dflash_pipeline.tracking.points"
    script = f"import sys, {modules}; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
