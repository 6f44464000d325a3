"""`dflash compare`: one document, text for a person, a page, and refusals in a sentence."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from dflash_pipeline.store.layout import Storage
from tests.stages.compared_runs import launch_of, write_report, write_run


@pytest.fixture
def storage(tmp_path):
    launch = launch_of(tmp_path / "toy")
    made = Storage(root=tmp_path / "storage")
    made.root.mkdir()
    made.plans.symlink_to(os.path.dirname(launch.plan_dir))  # noqa: PTH120
    write_run(made, "a", launch)
    write_run(made, "b", replace(launch, device="[bold]cuda"), loss=1.0)
    for run, accepted in (("a", [1, 2, 3]), ("b", [2, 2, 3])):
        write_report(made, run, accepted)
    return made


def test_a_document_text_and_a_page(dflash, storage, tmp_path):
    options = ["--storage", storage.root, "--out", tmp_path / "compared.html"]
    found = dflash("compare", "a", "b", *options, "--json").document
    assert [run["run"] for run in found["runs"]] == ["a", "b"]
    assert found["differences"]["device"] == {"a": "cpu", "b": "[bold]cuda"}
    [difference] = found["acceptance_differences"]
    assert (difference["before"], difference["after"]) == ("a", "b")
    assert difference["mean"] == pytest.approx(1 / 3)
    assert "a against b" in (tmp_path / "compared.html").read_text(encoding="utf-8")

    text = dflash("compare", "a", "b", "--storage", storage.root).out
    for part in ("What differs", "[bold]cuda", "useful tokens a second", "prompt by prompt", "epoch 1"):
        assert part in text.replace("\n", " "), part


def test_a_page_takes_the_place_of_no_file_but_a_page(dflash, storage, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine")
    for out in (mine, tmp_path, tmp_path / "no" / "page.html"):
        assert dflash("compare", "a", "b", "--storage", storage.root, "--out", out, "--json").code == 2
    assert mine.read_text() == "name: mine"
    for _ in range(2):
        page = ["--out", tmp_path / "page.html"]
        assert dflash("compare", "a", "b", "--storage", storage.root, *page, "--json").code == 0


def test_a_run_is_known_by_what_it_alone_begins_with(dflash, storage):
    (storage.runs / "b").rename(storage.runs / "bcd")
    found = dflash("compare", "a", "bc", "--storage", storage.root, "--json").document
    assert [run["run"] for run in found["runs"]] == ["a", "bcd"]
    (storage.runs / "bce").mkdir()
    assert (
        "2 runs begin so" in dflash("compare", "a", "bc", "--storage", storage.root, "--json").document["error"]["what"]
    )
    assert dflash("compare", "bcd", "bcd", "--storage", storage.root, "--json").code == 2


@pytest.mark.parametrize("runs", [["a"], ["a", "a"], ["a", "nosuch"], ["a", "../b"], ["a", "x" * 300]])
def test_what_cannot_be_compared(dflash, storage, runs):
    ran = dflash("compare", *runs, "--storage", storage.root, "--json")
    assert ran.code == 2
    assert ran.document["error"]["fix"]
    assert "--help" not in ran.document["error"]["fix"], "a refusal, not a usage error"
