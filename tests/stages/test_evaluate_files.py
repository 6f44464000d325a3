"""`dflash evaluate` decodes only what is whole: damage is told before a minute is spent on decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.acceptance import AcceptanceReport, PromptAcceptance, combine_results
from dflash_pipeline.evaluation.choice import GREEDY
from dflash_pipeline.evaluation.export import export_drafter
from dflash_pipeline.stages import evaluate_files as stage
from dflash_pipeline.store.files import HASH_LIST
from tests.tiny_models import strong_drafter, tiny_config

TARGET = Path(__file__).parents[2] / "examples" / "target"
MEASURED = combine_results(
    [
        PromptAcceptance(
            source="", prompt="", prompt_tokens=1, num_tokens=4, histogram=(1, 1), cut_tokens=0, lossless=True
        )
    ]
)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    config = tiny_config()
    export_drafter(
        config, strong_drafter(config).state_dict(), target_dir=TARGET, out=tmp_path / "export", card="# Card\n"
    )
    return tmp_path / "export"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Exports that decoding was asked for; nothing in this file really decodes."""
    asked: list[Path] = []

    def measure(candidate, prompts, decoding, **settings):
        asked.append(candidate.export_dir)
        return MEASURED

    monkeypatch.setattr(stage, "measure_in_processes", measure)
    return asked


def evaluate(export: Path, folder: Path, *, max_new_tokens: int = 2, thinking: bool | None = None) -> AcceptanceReport:
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"question": "How many?"}\n')
    return stage.evaluate_files(
        export,
        TARGET,
        prompts,
        num_prompts=1,
        max_new_tokens=max_new_tokens,
        num_processes=1,
        batch_size=1,
        choice=GREEDY,
        thinking=thinking,
    )


def test_the_template_is_told_of_the_mode(export, decoded, tmp_path):
    with pytest.raises(Refused, match="in the same words with thinking on and off"):
        evaluate(export, tmp_path, thinking=False)
    assert decoded == []


def test_a_whole_export_is_decoded(export, decoded, tmp_path):
    assert evaluate(export, tmp_path) is MEASURED
    assert decoded == [export]


def test_answers_beyond_the_targets_positions_are_refused_before_decoding(export, decoded, tmp_path):
    with pytest.raises(
        Refused, match=r"--max-new-tokens: a prompt of \d+ tokens and 100000 more are beyond the target's"
    ):
        evaluate(export, tmp_path, max_new_tokens=100_000)
    assert decoded == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "spoil", "what"),
    [
        ("model.safetensors", flip, "model.safetensors does not match its hash"),
        ("config.json", lambda path: path.write_text(path.read_text() + " "), "config.json does not match its hash"),
        ("tokenizer.json", Path.unlink, "tokenizer.json is missing"),
        (HASH_LIST, lambda path: path.write_text(""), f"{HASH_LIST} is empty"),
    ],
)
def test_a_damaged_export_is_refused_before_it_is_decoded(
    export, decoded, tmp_path, name: str, spoil: Callable[[Path], object], what: str
):
    spoil(export / name)
    with pytest.raises(Refused) as refused:
        evaluate(export, tmp_path)
    assert (refused.value.what, refused.value.where) == (what, str(export))
    assert "verify-export" in refused.value.fix
    assert decoded == []
