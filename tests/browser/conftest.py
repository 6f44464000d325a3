"""Both pages of a storage that a real run has filled, and a browser without a screen to look at them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Chain

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WANTED_PORT = 23400
PORTS = ["--dagster-port", str(WANTED_PORT), "--mlflow-port", str(WANTED_PORT)]
UI = [sys.executable, "-c", "from dflash_pipeline.cli import main; main()", "ui"]


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The addresses that `dflash ui --json` gave."""

    dagster: str
    mlflow: str
    experiment: str
    process: subprocess.Popen[str]


def start_ui(recipe_file: Path, storage: Path) -> Pages:
    """`dflash ui` as a process of its own, once both pages answer."""
    inherited = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    process = subprocess.Popen(
        [*UI, str(recipe_file), *PORTS, "--json"],
        env={**inherited, "DFLASH_STORAGE": str(storage), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            break
    return Pages(**json.loads(text), process=process)


@pytest.fixture(scope="session")
def pages(chain: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The pages of a copy of the run, on other ports than those asked for; ended with Ctrl-C."""
    copy = chain.copy(tmp_path_factory.mktemp("pages") / "storage")
    with socket.create_server(("127.0.0.1", WANTED_PORT)):
        served = start_ui(copy.recipe_file, copy.storage.root)
    family = psutil.Process(served.process.pid).children(recursive=True)
    yield served
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(60) == 0
    assert [member for member in family if member.is_running()] == []


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """A tab of a headless Chromium, without pictures of a first visit's greetings."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
        )
        tab = browser.new_page(viewport={"width": 1600, "height": 1000})
        tab.set_default_timeout(60_000)
        yield tab
        if folder := os.environ.get("DFLASH_SCREENSHOTS"):
            tab.screenshot(path=Path(folder) / f"{tmp_path.name}.png")
        browser.close()
