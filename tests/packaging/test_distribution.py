"""The wheel, built from the sdist and installed outside the repository, in a place that may not be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, write_recipe

OURS = "dflash_pipeline"
SOURCES = ("assets", OURS, "pyproject.toml", "README.md", "LICENSE", "dagster.yaml", "workspace.yaml", "MANIFEST.in")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both files, made from a copy of the sources with the tools that are installed: no network."""
    try:
        able = int(version("setuptools").split(".")[0]) >= 77 and version("build")
    except PackageNotFoundError:
        able = False
    if not able:
        pytest.skip("setuptools 77 and build are not installed here, and would have to be downloaded")
    sources, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, sources / name, follow_symlinks=False)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources)], cwd=sources)
    return out


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    [wheel] = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel alone; what it depends on is seen through a path file."""
    folder = tmp_path_factory.mktemp("elsewhere") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = str(folder / "bin" / "python")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    (site_packages(folder) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for path in [*site_packages(folder).rglob("*"), site_packages(folder)]:
        path.chmod(path.stat().st_mode & ~0o222)
    return folder


def site_packages(venv: Path) -> Path:
    [folder] = (venv / "lib").glob("python*/site-packages")
    return folder


def run(command: list[str], *, cwd: Path | None = None, **environment: str) -> str:
    """Standard output of a command that must succeed, run without a way back into the repository."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DAGSTER", "DFLASH"))
    }
    ended = subprocess.run(
        command,
        cwd=cwd or "/",
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_holds_every_module_as_a_file_and_nothing_else_at_the_top(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert not [info.filename for info in archive.infolist() if (info.external_attr >> 28) == 0o12], "links"
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / OURS).rglob("*.py")}
    modules |= {f"{OURS}/assets/{path.name}" for path in (ROOT / "assets").glob("*.py")}
    assert modules <= names
    assert f"{OURS}/dagster.yaml" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {OURS}


def test_the_sdist_holds_files_not_links(built: Path):
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.split("/", 1)[-1]: member for member in archive.getmembers()}
    assert members[f"{OURS}/assets/definitions.py"].isfile()
    assert members[f"{OURS}/dagster.yaml"].isfile()
    assert members[f"{OURS}/dagster.yaml"].size == (ROOT / "dagster.yaml").stat().st_size


def test_it_works_outside_the_repository_and_writes_nothing_into_its_install(installed: Path, tmp_path: Path):
    before = contents(installed)
    program = str(installed / "bin" / "dflash")
    assert "verify-export" in run([program, "--help"])
    np.save(tmp_path / "lengths.npy", np.arange(3, 60))
    lengths = ["--lengths", str(tmp_path / "lengths.npy"), "--token-budget", "256", "--slots-per-step", "2"]
    plan = json.loads(run([program, "plan", *lengths, "--out", str(tmp_path / "plan"), "--json"], cwd=tmp_path))
    assert plan["total_steps"] > 0
    assert contents(installed) == before


PLANNING = """
import numpy as np
from dflash_pipeline.planning.order import shuffled
from dflash_pipeline.planning.keys import Purpose
print(shuffled(np.arange(5), seed=1, epoch=0, purpose=Purpose.STEPS).tolist())
"""


def test_compiled_loops_are_kept_in_the_users_cache_or_made_anew(installed: Path, tmp_path: Path):
    python, cache = str(installed / "bin" / "python"), tmp_path / "cache"
    order = run([python, "-c", PLANNING], XDG_CACHE_HOME=str(cache))
    kept = files(cache)
    assert any(name.endswith(".nbc") for name in kept)
    assert run([python, "-c", PLANNING], XDG_CACHE_HOME=str(cache)) == order
    assert files(cache) == kept
    # A file where the folder should be: nothing can be kept there, nor in an installation that may not be written.
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    before = contents(installed)
    assert run([python, "-c", PLANNING], XDG_CACHE_HOME=str(blocked), HOME=str(blocked)) == order
    assert os.geteuid() == 0 or contents(installed) == before


def test_the_code_location_loads_there_without_torch_or_mlflow(installed: Path, tmp_path: Path):
    look = (
        "import sys, dflash_pipeline.assets.definitions as d; "
        "print(d.__file__, len(d.defs.assets), 'torch' in sys.modules, 'mlflow' in sys.modules)"
    )
    recipe = write_recipe(tmp_path / "tiny.yaml")
    out = run([str(installed / "bin" / "python"), "-c", look], cwd=tmp_path, DFLASH_RECIPE=str(recipe))
    place, assets, torch, mlflow = out.split()
    assert Path(place).is_relative_to(installed)
    assert (int(assets), torch, mlflow) == (13, "False", "False")


def test_workspace_yaml_loads_it_from_any_directory(installed: Path, tmp_path: Path):
    """In the repository's own folder the checkout goes before what is installed, and has to be whole, too."""
    recipe, python = write_recipe(tmp_path / "tiny.yaml"), str(installed / "bin" / "python")
    asked = {"DFLASH_RECIPE": str(recipe), "DFLASH_STORAGE": str(tmp_path / "storage")}
    validate = ["-m", "dagster", "definitions", "validate", "--log-level", "error", "-w", str(ROOT / "workspace.yaml")]
    run([python, *validate], cwd=tmp_path, **asked)
    place = "import dflash_pipeline.assets.definitions as d; print(d.__file__)"
    assert Path(run([python, "-c", place], cwd=ROOT, **asked).strip()).is_relative_to(ROOT)


def test_without_a_recipe_the_code_location_says_what_to_set(installed: Path, tmp_path: Path):
    ended = subprocess.run(
        [str(installed / "bin" / "python"), "-c", "import dflash_pipeline.assets.definitions"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "DFLASH_RECIPE: no recipe is named; set it to the path of a recipe file" in ended.stderr


def contents(venv: Path) -> dict[str, int]:
    """Every file of the install and when it was written; byte code, which a writable install would gain, aside."""
    return {name: time for name, time in files(site_packages(venv)).items() if not name.endswith(".pyc")}


def files(folder: Path) -> dict[str, int]:
    """Every file below a folder and when it was written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
