"""Both pages of a storage that a real run has filled, and a browser without a screen to look at them.

`make pictures` keeps what the tests see, in docs/pictures; other runs keep it with their temporary files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from tests.conftest import ROOT, Chain

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WANTED_PORT = 23400
LARGEST_PICTURE = 300_000
TOP_OF_TEXT = """wanted => {
  let top = window.innerHeight;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (texts.nextNode()) {
    const at = texts.currentNode.data.indexOf(wanted);
    if (at >= 0) {
      range.setStart(texts.currentNode, at);
      range.setEnd(texts.currentNode, at + 1);
      top = Math.min(top, Math.floor(range.getBoundingClientRect().top));
    }
  }
  return top;
}"""
PORTS = ["--dagster-port", str(WANTED_PORT), "--mlflow-port", str(WANTED_PORT)]
OTHER_PORTS = ["--dagster-port", str(WANTED_PORT + 50), "--mlflow-port", str(WANTED_PORT + 50)]
UI = [sys.executable, "-c", "from dflash_pipeline.cli import main; main()", "ui"]


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The addresses that `dflash ui --json` gave."""

    dagster: str
    mlflow: str
    experiment: str
    process: subprocess.Popen[str]


@dataclass(frozen=True, kw_only=True)
class Worked:
    """Pages that tests may change things through, and the storage behind them."""

    pages: Pages
    chain: Chain


Picture = Callable[..., None]


def start_ui(recipe_file: Path, storage: Path, *options: str, said: Path | None = None, home: str = "") -> Pages:
    """`dflash ui` as a process of its own, once both pages answer. What it says on standard error goes to `said`."""
    inherited = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    process = subprocess.Popen(
        [*UI, str(recipe_file), *PORTS, *options, "--json"],
        env={**inherited, "DFLASH_STORAGE": str(storage), "OMP_NUM_THREADS": "1", "DAGSTER_HOME": home},
        stdout=subprocess.PIPE,
        stderr=said.open("w") if said else None,
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
    """The pages of a copy of the run, on other ports than those asked for; ended with Ctrl-C. Look, do not touch."""
    copy = chain.copy(new_storage("looked-at", tmp_path_factory))
    with socket.create_server(("127.0.0.1", WANTED_PORT)), served(copy) as found:
        yield found


@pytest.fixture(scope="session")
def worked(chain: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """The pages of another copy, for tests that start, fail and end things there."""
    copy = chain.copy(new_storage("worked", tmp_path_factory))
    with served(copy, *OTHER_PORTS) as found:
        yield Worked(pages=found, chain=copy)


@contextmanager
def served(chain: Chain, *options: str) -> Iterator[Pages]:
    """The pages while the block runs; Ctrl-C then ends them and leaves no process."""
    found = start_ui(chain.recipe_file, chain.storage.root, *options)
    family = psutil.Process(found.process.pid).children(recursive=True)
    try:
        yield found
    finally:
        found.process.send_signal(signal.SIGINT)
        code = found.process.wait(60)
    assert code == 0
    assert [member for member in family if member.is_running()] == []


def new_storage(name: str, factory: pytest.TempPathFactory) -> Path:
    """Where a copy goes; for pictures, which show paths, to a folder that tells nothing of the machine."""
    if not os.environ.get("DFLASH_PICTURES"):
        return factory.mktemp(name) / "storage"
    folder = Path(tempfile.gettempdir()) / "dflash" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder / "storage"


@pytest.fixture
def picture(page: Any, tmp_path: Path) -> Picture:
    """Keeps what the page shows now, or the part of it above a text."""

    def keep(name: str, *, above: str | None = None) -> None:
        folder = os.environ.get("DFLASH_PICTURES")
        path = (ROOT / folder if folder else tmp_path) / f"{name}.png"
        clip = {"x": 0, "y": 0, **page.viewport_size}
        if above is not None:
            clip["height"] = page.evaluate(TOP_OF_TEXT, above)
        page.screenshot(path=path, clip=clip, animations="disabled")
        if folder:
            with Image.open(path) as shot:
                shot.convert("RGB").quantize(160).save(path, optimize=True)
            assert path.stat().st_size < LARGEST_PICTURE

    return keep


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
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        tab.set_default_timeout(60_000)
        yield tab
        if folder := os.environ.get("DFLASH_SCREENSHOTS"):
            tab.screenshot(path=Path(folder) / f"{tmp_path.name}.png")
        browser.close()
