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
