"""The page on one's own data holds its facts and nothing of the rows as markup; forecasts by the command line."""

from __future__ import annotations

import json

import numpy as np

from tests.conftest import ROOT

STRATEGIES = ["sorted", "shuffle", "bucket", "window", "varlen", "bucket, static"]


def test_a_page_of_facts_without_foreign_markup(dflash, tmp_path):
    rows = [
        {"id": str(i), "messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "x " * i}]}
        for i in range(1, 120)
    ]
    lines = [json.dumps(row) for row in rows] + ["<script>alert(1)</script>"]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    arguments = ["--source", tmp_path / "rows.jsonl", "--tokenizer", ROOT / "examples" / "target"]
    out = tmp_path / "sub" / "page.html"
    ran = dflash("report", *arguments, "--out", out, "--token-budget", 512, "--tokens-per-second", 100, "--json")
    facts, page = ran.document, out.read_text()
    assert (ran.code, facts["accepted"], facts["rejected"]) == (0, 119, 1)
    assert [row["name"] for row in facts["strategies"]] == STRATEGIES
    assert all(row["hours"] > 0 for row in facts["strategies"])
    assert facts["lengths"]["longest"] == facts["boundaries"][-1]
    assert f"{facts['num_tokens']:,} tokens" in page
    assert page.count("data:image/png;base64,") == 2
    assert "malformed_json" in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page


def test_a_forecast_of_lengths(dflash, tmp_path):
    np.save(tmp_path / "lengths.npy", np.arange(2000) % 300 + 1)
    ran = dflash("forecast", "--lengths", tmp_path / "lengths.npy", "--token-budget", 1024, "--json")
    rows = {row["name"]: row for row in ran.document["strategies"]}
    assert list(rows) == STRATEGIES
    assert rows["sorted"]["relative_throughput"] == 1.0
    assert [name for name, row in rows.items() if row["chosen"]] == ["window"]
    table = dflash("forecast", "--lengths", tmp_path / "lengths.npy", "--token-budget", 1024).out.splitlines()
    assert len(table) == 1 + len(STRATEGIES)
    assert sum(line.startswith("*") for line in table) == 1


def test_buckets_are_a_number_or_auto(dflash, tmp_path):
    np.save(tmp_path / "lengths.npy", np.arange(2000) % 300 + 1)
    asked = ("boundaries", "--lengths", tmp_path / "lengths.npy", "--json")
    assert len(dflash(*asked, "--buckets", "auto").document["boundaries"]) > 3
    refused = dflash(*asked, "--buckets", "many")
    assert (refused.code, refused.document["error"]["where"]) == (2, "--buckets")
    expected = dflash(*asked, "--objective", "batch-max", "--token-budget", 1024).document
    assert expected["efficiency"] > dflash(*asked).document["efficiency"]
    missing = dflash(*asked, "--objective", "batch-max")
    assert (missing.code, missing.document["error"]["where"]) == (2, "boundaries")
    unused = dflash(*asked, "--token-budget", 1024)
    assert (unused.code, unused.document["error"]["where"]) == (2, "--token-budget")
    coarse = dflash(*asked, "--grid", 301)
    assert (coarse.code, coarse.document["error"]["where"]) == (2, "--grid")


def test_a_forecast_says_what_it_leaves_out(dflash, tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([10, 20, 5000, 30, 6000]))
    asked = ("forecast", "--lengths", tmp_path / "lengths.npy", "--token-budget", 1000, "--slots-per-step", 2)
    assert dflash(*asked, "--json").document["num_dropped"] == 2
    assert "left out of 5 samples, without a token or above the token budget: 2 by sorted" in dflash(*asked).out


def test_lengths_that_are_none_are_refused_by_name(dflash, tmp_path):
    odd = {
        "durations": (np.array([5, 6], dtype="m8[s]"), "no list of numbers for 'length'"),
        "zeros": (np.zeros(3, dtype=int), "none of 3 samples has a token"),
        "negative": (np.array([3, -1]), "sample 1 has length -1"),
        "huge": (np.array([10, 2**62]), "sample 1 has length 4611686018427387904"),
    }
    for name, (column, sentence) in odd.items():
        np.save(tmp_path / f"{name}.npy", column)
        ran = dflash("boundaries", "--lengths", tmp_path / f"{name}.npy", "--json")
        assert (ran.code, ran.document["error"]["where"]) == (2, str(tmp_path / f"{name}.npy"))
        assert sentence in ran.document["error"]["what"]
    (tmp_path / "text.npy").write_text("hello")
    assert "pickle" not in dflash("boundaries", "--lengths", tmp_path / "text.npy").err


def test_a_budget_that_is_too_small_is_told_with_the_longest_sample(dflash, tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([10, 20, 5000, 30]))
    asked = ("boundaries", "--lengths", tmp_path / "lengths.npy", "--objective", "batch-max", "--token-budget", 100)
    assert "samples of up to 5000 tokens" in dflash(*asked).err
