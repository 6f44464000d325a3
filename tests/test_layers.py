"""The layers of the code are kept, and the tool that keeps them would see it if they were not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    # Without its cache, which has hidden violations.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    done.stdout = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)  # Some versions colour what no terminal reads.
    return done


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    shutil.copytree(ROOT / "dflash_pipeline", folder / "dflash_pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_layers_are_kept(copy: Path):
    result = lint_imports(copy)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("contracts/errors.py", "import dflash_pipeline.store.files", "The pipeline reads downwards"),
        ("model/config.py", "import dflash_pipeline.ingest.rows", "The pipeline reads downwards"),
        ("training/loop.py", "import duckdb", "Training reads files: no database, no orchestrator"),
        ("stages/made.py", "import dagster", "Dagster is known in assets only"),
    ],
)
def test_a_planted_violation_is_caught(copy: Path, file: str, line: str, contract: str):
    path = copy / "dflash_pipeline" / file
    before = path.read_text(encoding="utf-8")
    path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    try:
        result = lint_imports(copy)
    finally:
        path.write_text(before, encoding="utf-8")
    assert result.returncode == 1
    assert f"{contract} BROKEN" in result.stdout
