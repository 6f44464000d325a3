"""Bad input of many kinds, for every command: a refusal that says what, where and what to do, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.bad_files import TARGET, fill

TOO_LONG = "x" * 300
ROWS = f"ingest --source rows.jsonl --map question=user,answer=assistant --tokenizer {TARGET} --storage out"
EVALUATE = f"evaluate --target {TARGET} --max-new-tokens 4 --prompts rows.jsonl --draft"
PLAN = "plan --lengths good.npy --slots-per-step 2 --out out --token-budget"

RECIPES = (
    *("nosuch.yaml", "dir", "empty.yaml", "binary.yaml", "empty.yaml/inside", TOO_LONG, "a\0b"),
    *("unknown.yaml", "twice.yaml", "list.yaml", "word.yaml", "deep.yaml", "tab.yaml", "date.yaml", "object.yaml"),
)
SETTINGS = (
    *("batching.nosuch=1", "nosuch.x=1", "batching=1", "batching.seed", "=3", "batching.seed.x=1", "batching={"),
    *("batching.seed=x", "batching.seed=-1", "batching.epochs=65", "batching.token_budget=0", "batching.strategy=none"),
    *("data.sources=[]", "data.sources.7.path=x", "data.sources.x=1", "data.validation_fraction=0.9"),
    *("training.num_ranks=2", "training.learning_rate=.nan", "training.betas=[2, 3]", "training.keep_checkpoints=0"),
    *("name=../x", "name=5", "schedule.cron=never", "schedule.timezone=Mars/Base"),
    *("storage=empty", "storage=empty/inside", "storage=/proc/nosuch"),
)
OF_A_REAL_RUN = (
    *("storage=empty", "storage=empty/inside", "storage=/proc/nosuch"),
    *("schedule.cron=never", "schedule.timezone=Mars/Base"),
)
"""A dry run writes no storage, and lists what would stop it as a fault; it looks at no schedule."""
LENGTHS = (
    *("nosuch.npy", "dir", "empty.npy", "binary.npy", "empty.parquet", "binary.parquet", TOO_LONG, "a\0b"),
    *("floats.npy", "square.npy", "negative.npy", "none.npy", "huge.npy", "unsigned.npy", "single.npy", "flags.npy"),
    *("objects.npy", "several.npz", "no_column.parquet", "null.parquet", "text.parquet", "nested.parquet"),
    *("more_supervised.parquet", "supervised_text.parquet"),
)
PLANS = (
    *("nosuch", "dir", "empty", "plan_empty_seal", "plan_binary_seal", "plan_renamed_seal"),
    *("plan_without_epoch", "plan_empty_epoch", "plan_other_table"),
)
TARGETS = (
    *("nosuch", "dir", "empty", "target_without_config", "target_torn_config", "target_list_config"),
    *("target_odd_tokenizer", "target_odd_tokenizer_config", "target_without_tokenizer", "target_torn_template"),
    *("target_odd_settings", "target_without_weights", "target_torn_weights", "target_of_no_kind"),
    *("target_of_other_size", "target_odd_vocabulary"),
)
TOKENIZERS = ("nosuch", "dir", "empty", "target_without_tokenizer", "target_odd_tokenizer", "target_torn_template")
EXPORTS = (
    *("nosuch", "dir", "empty", "no_config", "binary_config", "list_config", "odd_layer_types", "odd_dflash"),
    *("odd_rope", "odd_size", "odd_count", "no_weights", "empty_weights", "renamed_tensor"),
)
PROMPTS = ("nosuch", "dir", "empty", "binary", "no_prompt.jsonl", "torn.jsonl", "deep.jsonl")
STORAGES = ("empty", "empty/inside", "binary", "/proc/nosuch", "a\0b", TOO_LONG)

REFUSED = [
    *([command, recipe] for command in ("run", "train", "ui", "preflight") for recipe in RECIPES),
    *(["run", "good.yaml", "--plan-only", "--set", setting] for setting in SETTINGS),
    *(["run", "good.yaml", "--dry-run", "--lengths", lengths] for lengths in LENGTHS),
    *(["run", "good.yaml", "--dry-run", "--set", setting] for setting in SETTINGS if setting not in OF_A_REAL_RUN),
    *([*ROWS.split(), "--source", source] for source in ("nosuch.jsonl", "dir", "empty", "empty/inside", TOO_LONG)),
    *(
        ["ingest", "--tokenizer", str(TARGET), "--storage", "out", "--source", s]
        for s in ("empty.jsonl", "binary.json")
    ),
    *([*ROWS.split(), "--tokenizer", tokenizer] for tokenizer in TOKENIZERS),
    *([*ROWS.split(), "--map", text] for text in ("x", "=user", "a=b", "a=user,b=user", "a=user")),
    *([*ROWS.split(), "--chat-template", template] for template in ("nosuch", "dir", "empty.jinja", "binary.jinja")),
    *([*ROWS.split(), *pair.split()] for pair in ("--max-length 1", "--overlong x", "--supervise x")),
    *([*ROWS.split(), "--storage", storage] for storage in STORAGES),
    *(["rejected", "--storage", storage] for storage in STORAGES),
    *(["show-sample", "x", "--storage", storage] for storage in (*STORAGES, "nothing_yet")),
    *(["boundaries", "--lengths", lengths] for lengths in LENGTHS),
    *([*f"{PLAN} 1000".split(), "--lengths", lengths] for lengths in LENGTHS),
    *([*f"{PLAN} 1000".split(), "--out", out] for out in STORAGES),
    *([*PLAN.split(), *rest.split()] for rest in ("10", f"{10**30}", "1000 --seed -1", "1000 --quadratic-length nan")),
    *([*PLAN.split(), *rest.split()] for rest in ("1000 --strategy x", "1000 --micro-batches-per-rank 3")),
    *(["manifest", "show", plan] for plan in PLANS),
    *(["manifest", "verify", plan] for plan in PLANS[:6]),
    *(["manifest", "diff", "plan", plan] for plan in PLANS[:6]),
    *(["manifest", *rest.split()] for rest in ("x plan", "diff plan", "show plan plan")),
    *([*EVALUATE.split(), export] for export in EXPORTS),
    *([*EVALUATE.split(), "export", "--target", target] for target in TARGETS),
    *([*EVALUATE.split(), "export", "--prompts", prompts] for prompts in PROMPTS),
    *(["verify-export", export, "--target", str(TARGET)] for export in ("nosuch", "empty")),
    *(["verify-export", "export", "--target", target] for target in TARGETS[:3]),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    fill(folder)
    return folder


@pytest.fixture(autouse=True)
def _in_the_folder(bad_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bad_files)


def _short(arguments: list[str]) -> str:
    return " ".join(argument[-24:] for argument in arguments).replace("\0", "0")


@pytest.mark.parametrize("arguments", REFUSED, ids=_short)
def test_bad_input_is_refused_in_one_sentence(arguments, dflash):
    ran = dflash(*arguments, "--json")
    error = ran.document["error"]
    assert ran.code == 2, error
    assert "Traceback" not in ran.out + ran.err
    assert all(error[part].strip() for part in ("what", "where", "fix"))
    assert "\n" not in error["what"] + error["fix"]


def test_the_recipe_that_settings_spoil_is_good(dflash):
    ran = dflash("preflight", "good.yaml", "--json")
    assert (ran.code, ran.document["faults"]) == (0, [])


@pytest.mark.parametrize("export", [*EXPORTS[1:2], *EXPORTS[3:], "not_finite"])
def test_an_export_that_is_not_what_it_says_fails_its_checks(export, dflash):
    ran = dflash("verify-export", export, "--target", TARGET, "--json")
    assert ran.code == 1
    assert ran.document["ok"] is False
    assert [check["name"] for check in ran.document["checks"] if not check["ok"]]
    assert "Traceback" not in ran.out + ran.err


@pytest.mark.parametrize("plan", PLANS[6:])
def test_a_damaged_plan_fails_its_check(plan, dflash):
    ran = dflash("manifest", "verify", plan, "--json")
    assert ran.code == 1
    assert ran.document["ok"] is False
    assert all(fault["what"] and fault["where"] and fault["fix"] for fault in ran.document["faults"])


def test_a_refused_ingestion_still_tells_what_it_found(dflash):
    ran = dflash("ingest", "--source", "binary.jsonl", "--tokenizer", TARGET, "--storage", "out", "--json")
    assert ran.code == 2
    assert ran.document["accepted"] == 0
    assert ran.document["rejected"] == sum(ran.document["by_reason"].values()) > 0
    assert ran.document["error"]["what"].startswith("no row was accepted")


def test_a_folder_that_may_not_be_written_is_refused(dflash, tmp_path, monkeypatch):
    def denied(*_arguments, **_options):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    # Tests may run as root, whom no mode stops.
    monkeypatch.setattr(Path, "mkdir", denied)
    ran = dflash(*f"{PLAN} 1000".split(), "--out", tmp_path / "plan", "--json")
    assert ran.code == 2
    assert ran.document["error"] == {
        "what": "Permission denied",
        "where": str(tmp_path),
        "fix": "check who may read and write it",
    }
