"""The cases runner on the cases of tests/cases, against what must come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "cases"
END = "<|im_end|>"
GIB = 2**30


@pytest.fixture(scope="module")
def observed() -> dict[str, Any]:
    return run_cases("--quick")


def run_cases(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cases", str(CASES), "--json", *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def test_every_case_is_answered(observed: dict[str, Any]) -> None:
    prefixes = ("in_", "ch_", "bt_", "pr_", "rs_", "tr_", "or_")
    cases = {p.name for p in CASES.iterdir() if p.name.startswith(prefixes) and p.suffix in ("", *SUFFIXES)}
    assert set(observed) == cases
    assert len(cases) >= 50
    crashed = {name: facts["crashed"] for name, facts in observed.items() if "crashed" in facts}
    assert crashed == {}


SUFFIXES = (".json", ".jsonl", ".py")
INGESTION = {
    # case: accepted, rejected, exact duplicates
    "in_bom.jsonl": (3, 0, 0),
    "in_date_like_text.jsonl": (5, 0, 0),
    "in_ids_mixed.jsonl": (5, 0, 0),
    "in_late_field.py": (30_001, 0, 0),
    "in_key_case.jsonl": (3, 0, 0),
    "in_mixed_timestamps.jsonl": (3, 0, 0),
    "in_line_separators.jsonl": (3, 0, 0),
    "in_trailing_comma.json": (0, 0, 0),
    "in_content_parts.jsonl": (4, 1, 0),
    "in_torn_tail.jsonl": (4, 1, 0),
    "in_duplicate_ids.jsonl": (3, 1, 1),
    "in_huge_row.py": (4, 0, 0),
    "in_sharegpt.jsonl": (2, 5, 0),
    "in_malformed_24.jsonl": (25, 24, 0),
}
REASONS = {
    "in_content_parts.jsonl": [("p3", 3, "unsupported_content")],
    "in_torn_tail.jsonl": [(None, 5, "malformed_json")],
    "in_duplicate_ids.jsonl": [("y", 4, "duplicate_id_conflict")],
    "in_sharegpt.jsonl": [
        ("g2", 2, "starts_with_assistant"),
        ("g4", 4, "no_assistant"),
        ("g5", 5, "empty_assistant"),
        ("g6", 6, "no_messages"),
        ("g7", 7, "bad_role"),
    ],
}


@pytest.mark.parametrize("name", INGESTION)
def test_rows_add_up(observed: dict[str, Any], name: str) -> None:
    facts = observed[name]
    assert (facts["accepted"], facts["rejected"], facts["exact_duplicates"]) == INGESTION[name]
    assert facts["rows"] == sum(INGESTION[name])
    assert facts["stored"]["conversations"] == facts["accepted"] == facts["distinct_ids"]
    assert facts["same_ids_on_a_second_run"]
    if name in REASONS:
        assert [(r["id"], r["line"], r["reason"]) for r in facts["rejected_rows"]] == REASONS[name]


def answers(facts: dict[str, Any]) -> list[Any]:
    return [row["messages"][-1]["content"] for row in facts["accepted_rows"]]


def test_text_and_ids_are_kept(observed: dict[str, Any]) -> None:
    assert answers(observed["in_date_like_text.jsonl"]) == [
        "2024-05-01",
        "25-11-2025",
        "07:30:00",
        "2024-05-01T07:30:00Z",
        "BBD05AE7-1111-4222-8333-ABCDEFABCDEF",
    ]
    assert observed["in_bom.jsonl"]["ids"] == ["b0", "b1", "b2"]
    assert observed["in_ids_mixed.jsonl"]["ids"][:3] == ["7", "007", "7 "]
    assert observed["in_key_case.jsonl"]["ids"] == ["k1", "k2", "k3"]
    assert observed["in_key_case.jsonl"]["accepted_rows"][0]["messages"][0]["role"] == "user"
    text = json.dumps(observed["in_line_separators.jsonl"]["accepted_rows"], ensure_ascii=False)
    assert all(mark in text for mark in "\u2028\u2029\u0085")
    assert "\\u000b" in text
    assert "\\f" in text
    assert answers(observed["in_duplicate_ids.jsonl"])[1] == "first version"
    assert observed["in_content_parts.jsonl"]["accepted_rows"][1]["messages"][0]["content"] == "two parts"
    g3 = observed["in_sharegpt.jsonl"]["accepted_rows"][1]
    assert [turn["role"] for turn in g3["messages"]].count("user") == 2


def test_the_last_row_keeps_its_tool_call(observed: dict[str, Any]) -> None:
    last = observed["in_late_field.py"]["accepted_rows"][-1]
    assert (last["id"], last["line"]) == ("r30000", 30_001)
    assert last["messages"][-1]["tool_calls"][0]["function"]["name"] == "f"


def test_a_broken_array_gives_one_error_and_nothing_else(observed: dict[str, Any]) -> None:
    facts = observed["in_trailing_comma.json"]
    [error] = facts["file_errors"]
    assert "in_trailing_comma.json byte 184" in error["error"]
    assert facts["stored"] == {"conversations": 0, "rejected_rows": 0}


def test_bad_lines_are_named(observed: dict[str, Any]) -> None:
    facts = observed["in_malformed_24.jsonl"]
    assert facts["ids"] == [f"ok{n}" for n in range(25)]
    assert [row["line"] for row in facts["rejected_rows"]] == list(range(2, 49, 2))
    assert len(facts["by_reason"]) >= 8


def test_a_huge_row_under_both_limits(observed: dict[str, Any]) -> None:
    large, small = (observed["in_huge_row.py"]["by_limit"][str(limit)] for limit in (64 * 2**20, 2**20))
    assert large["ids"] == ["s1", "big", "s2", "s3"]
    assert large["accepted_rows"][1]["messages"][-1]["content"]["characters"] == 20 * 2**20
    assert small["ids"] == ["s1", "s2", "s3"]
    assert [(r["line"], r["reason"]) for r in small["rejected_rows"]] == [(2, "row_too_large")]
    assert small["peak_memory_bytes"] < large["peak_memory_bytes"] < GIB


CHAT = {
    # case: tokens, supervised tokens, supervised text
    "ch_double_bos.json": (26, 3, "yo[END]"),
    "ch_no_generation_markers.json": (25, 3, "yo[END]"),
    "ch_reasoning_field.json": (43, 19, "<think>\ntwo and two\n</think>\n\n4[END]"),
    "ch_think_in_content.json": (43, 19, "<think>\ntwo and two\n</think>\n\n4[END]"),
    "ch_inserted_empty_think.json": (32, 2, "4[END]"),
    "ch_truncated_in_answer.json": (30, 9, "abcdefghi"),
    "ch_tool_turns.json": (106, 34, "<tool_call>clock</tool_call>[END]noon[END]"),
    "ch_multi_turn.json": (61, 6, "a1[END]a2[END]"),
}


@pytest.mark.parametrize("name", CHAT)
def test_chat(observed: dict[str, Any], name: str) -> None:
    tokens, supervised, text = CHAT[name]
    facts = observed[name]
    assert (facts["num_tokens"], facts["num_supervised"]) == (tokens, supervised)
    assert facts["supervised_text"] == text.replace("[END]", END)


def test_chat_in_detail(observed: dict[str, Any]) -> None:
    assert observed["ch_double_bos.json"]["special_tokens"]["<s>"] == 1
    assert observed["ch_multi_turn.json"]["last_turn_only"][0]["supervised_text"] == "a2" + END
    field, content = (observed[f"ch_{name}.json"] for name in ("reasoning_field", "think_in_content"))
    assert field["tokens_sha256"] == content["tokens_sha256"]
    assert field["mask_sha256"] == content["mask_sha256"]
    long, fits = observed["ch_truncated_before_answer.json"]["rows"]
    assert long == {"id": "long", "dropped": "no_supervised_tokens"}
    assert (fits["num_tokens"], fits["num_supervised"]) == (25, 3)


def test_samples_above_the_budget(observed: dict[str, Any]) -> None:
    by_policy = observed["bt_overlong_sample.json"]["by_policy"]
    truncated = by_policy["truncate"]
    assert truncated["cut"] == [1, 5]
    assert truncated["lengths"] == [120, 4096, 300, 90, 4096, 4096]
    for strategy in ("sorted", "shuffle", "bucket"):
        for epoch in truncated["by_strategy"][strategy]["epochs"]:
            assert sorted(i for batch in epoch["batches"] for i in batch) == list(range(6))
        for epoch in by_policy["drop"]["by_strategy"][strategy]["epochs"]:
            assert sorted(i for batch in epoch["batches"] for i in batch) == [0, 2, 3, 4]
            assert epoch["dropped"] == [1, 5]
        assert "samples 1, 5 are above the token budget" in by_policy["error"]["by_strategy"][strategy]["refused"]


def test_the_budget_counts_padding(observed: dict[str, Any]) -> None:
    [first, _] = observed["bt_padded_budget.json"]["by_strategy"]["sorted"]["epochs"]
    assert sorted(first["batches"]) == [[0], [1, 2, 3], [4]]


def test_more_buckets_than_needed(observed: dict[str, Any]) -> None:
    for facts in observed["bt_many_buckets.json"]["by_strategy"].values():
        for epoch in facts["epochs"]:
            assert (epoch["scheduled"], epoch["scheduled_once"], epoch["dropped"]) == (1000, True, [])
    same = observed["bt_all_same_length.json"]
    assert (same["boundaries"], same["used_buckets"]) == ([0, 512], 1)
    assert [(len(e["batches"]), e["batches_per_rank"]) for e in same["epochs"]] == [(10, 5), (10, 5)]


def test_an_unfilled_last_step(observed: dict[str, Any]) -> None:
    by_tail = observed["bt_uneven_ranks.json"]["by_tail_policy"]
    for epoch in by_tail["fill"]["epochs"]:
        assert (epoch["steps"], epoch["scheduled"], len(epoch["fillers"])) == (4, 13, 3)
    for epoch in by_tail["drop"]["epochs"]:
        assert (epoch["steps"], epoch["scheduled"], len(epoch["dropped"])) == (3, 12, 1)


def test_order_is_a_function_of_the_epoch(observed: dict[str, Any]) -> None:
    for facts in observed["bt_epoch_order.json"]["by_strategy"].values():
        hashes = [epoch["file_sha256"] for epoch in facts["epochs"]]
        assert hashes[0] == hashes[3]
        assert len(set(hashes)) == 3
        assert all((e["scheduled"], e["scheduled_once"]) == (64, True) for e in facts["epochs"])


def test_hardly_any_samples(observed: dict[str, Any]) -> None:
    none, one, empty = observed["bt_empty_and_tiny.json"]["cases"]
    assert "there are no samples" in none["refused"]
    [epoch, _] = one["epochs"]
    assert (epoch["steps"], epoch["scheduled"], len(epoch["fillers"])) == (1, 1, 7)
    [epoch, _] = empty["epochs"]
    assert (epoch["dropped"], epoch["batches"]) == ([0, 1], [[2]])


def test_progress(observed: dict[str, Any]) -> None:
    varying = observed["pr_varying_epochs.json"]
    assert [a["epoch_fraction"] for a in varying["after"]] == [1.0, 0.0625, 0.9375, 1.0, 1.0]
    assert (varying["largest_epoch_fraction"], varying["at_each_epochs_end"]) == (1.0, [1.0, 1.0, 1.0])
    bar = observed["pr_resume_bar.json"]
    assert (bar["at_once_after_resume"], bar["totals_seen"], bar["at_the_end"]) == (0.5, [64], 1.0)
    early = observed["pr_before_first_manifest.json"]
    assert (early["exceptions"], early["states_before_the_first_manifest"]) == ([], ["not started"])
    assert (early["smallest"], early["largest"], early["never_falls_within_an_epoch"]) == (0.0, 1.0, True)
    assert early["readings"] > 20


def test_runs_that_are_taken_up_again(observed: dict[str, Any]) -> None:
    finished = observed["rs_finished_run.json"]
    assert [(s["steps"], s["success"]) for s in finished["starts"]] == [(0, True)] * 3
    assert finished["checkpoints_unchanged"]
    second = observed["rs_second_epoch.json"]
    assert second["resumed_at"] == {"epoch": 1, "batch": 75}
    assert second["steps_after_resume"] == [200, 499]
    assert second["same_batches"]
    assert second["same_losses"]
    once = observed["rs_skip_once.json"]
    assert once["batches_after_resume"] == {"0": 11, "1": 16, "2": 16}
    assert [(e["samples_used"], e["distinct_samples"]) for e in once["epochs"]] == [(64, 64)] * 3


def test_checkpoints(observed: dict[str, Any]) -> None:
    names = observed["rs_checkpoint_names.json"]
    assert names["newest_first"] == ["step_0900000", "step_100000", "step_10000", "step_9000", "step_999"]
    keep = names["after_keep"]
    assert keep["-1"]["deleted"] == []
    assert keep["2"]["deleted"] == ["step_10000", "step_9000", "step_999"]
    assert "refused" in keep["0"]
    assert len(keep["0"]["stay"]) == 9
    torn = observed["rs_torn_checkpoints"]
    assert (torn["used"], sorted(torn["not_whole"])) == ("step_20", ["step_30", "step_40", "step_50"])
    assert len(torn["still_there"]) == 5


def test_what_a_change_rebuilds(observed: dict[str, Any]) -> None:
    facts = observed["rs_stale_cache.json"]
    rebuilt = {next(iter(c["change"])): (c["tokens"], c["manifests"]) for c in facts["changes"]}
    both, manifests, none = ("rebuilt", "rebuilt"), ("reused", "rebuilt"), ("reused", "reused")
    assert rebuilt == {
        **dict.fromkeys(("max_length", "template_sha256", "tokenizer_sha256", "dataset_sha256"), both),
        **dict.fromkeys(("seed", "budget", "world_size"), manifests),
        **dict.fromkeys(("log_level", "mlflow_uri"), none),
    }
    assert {(r["tokens"], r["manifests"]) for r in facts["other_ranks_at_launch"]} == {none}


def test_tracking(observed: dict[str, Any]) -> None:
    nonfinite = observed["tr_nonfinite.json"]
    assert nonfinite["loss_points"] == {"1": 0.95, "5": 0.94}
    assert (nonfinite["nonfinite_count"], nonfinite["run_readable"]) == (3, True)
    assert nonfinite["largest_value_of_any_metric"] < 1e300
    many = observed["tr_many_metrics.json"]
    assert many["points_given"] == many["points_stored"] >= 2500
    assert many["largest_request"] <= 1000
    resumed = observed["tr_resume_steps.json"]
    assert (resumed["runs"], resumed["steps"], resumed["steps_missing"]) == (1, [1, 150], [])
    assert resumed["values_of_the_second_attempt"] == [91, 150]
    assert resumed["steps_rise"]
    assert resumed["event_log_agrees"]


def test_an_outage_costs_training_nothing(observed: dict[str, Any]) -> None:
    facts = observed["tr_server_outage.json"]
    assert facts["seconds"] <= 4.9
    assert facts["longest_stall"] <= 1.0
    assert facts["afterwards"] == {
        "points": 200,
        "steps_with_exactly_one_point": 200,
        "steps_without": 0,
        "right_values": True,
    }


def test_spikes(observed: dict[str, Any]) -> None:
    history = observed["tr_history_spikes.json"]
    assert history["flagged"] == [254, 258]
    assert [(e["peak"], e["peak_at"]) for e in history["events"]] == [(6.4, 258)]
    assert observed["tr_quiet_run.json"]["flagged"] == []


def test_daylight_saving(observed: dict[str, Any]) -> None:
    spring, autumn = observed["or_dst.json"]["windows"]
    assert [(w["daily"]["runs"], len(w["daily"]["local_dates"])) for w in (spring, autumn)] == [(3, 3), (3, 3)]
    assert [w["hourly"]["distinct_instants"] for w in (spring, autumn)] == [71, 73]


def test_an_edit_causes_no_run(observed: dict[str, Any]) -> None:
    facts = observed["or_cron_edit.json"]
    assert facts["before_the_edit"]["utc"] == ["2026-11-02T01:15:00+00:00"]
    assert facts["runs_caused_by_the_edit"] == 0
    assert facts["after_the_edit"]["utc"] == ["2026-11-03T02:15:00+00:00"]


def test_a_pause_is_not_caught_up(observed: dict[str, Any]) -> None:
    switched, down = observed["or_pause_resume.json"].values()
    for facts in (switched, down):
        assert facts["runs_before"] == 1
        assert facts["utc"] == ["2026-11-07T03:00:00+00:00"]
    assert switched["runs_for_ticks_of_the_pause"] == 0
    # A daemon that comes back runs the newest tick it has missed, and none of the others.
    assert down["runs_for_ticks_of_the_pause"] == 1


def test_never_two_trainings_at_once(observed: dict[str, Any]) -> None:
    facts = observed["or_overlap.json"]
    assert [tick["minute"] for tick in facts["ticks"]] == [0, 10, 20, 30, 40, 50]
    assert facts["most_trainings_at_once"] == 1
    assert facts["trainings"] == [[0, 25], [30, 55]]
    assert facts["most_runs_waiting"] == 0
    reasons = [tick["reason"] for tick in facts["ticks"] if not tick["runs"]]
    assert [tick["runs"] for tick in facts["ticks"]] == [1, 0, 0, 1, 0, 0]
    assert all("still going on" in reason for reason in reasons)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_cancelled_run_leaves_no_process() -> None:
    [polite, killed] = run_cases("--only", "or_cancel")["or_cancel_children.json"].values()
    assert (polite["ranks"], killed["ranks"]) == (8, 8)
    assert polite["processes_left"]["after 30 s"] == 0
    assert killed["processes_left"]["after 60 s"] == 0
    for facts in (polite, killed):
        assert facts["newest_checkpoint"]
        assert facts["its_faults"] == []
        assert facts["database_is_free"]
        assert facts["still_held"] == []
    assert polite["dagster_status"] == "CANCELED"
    assert killed["dagster_status_at_the_next_command"] == "FAILURE"
