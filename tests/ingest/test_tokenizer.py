"""A tokenizer is loaded once a process, and again when a file of its folder is another."""

import shutil
from pathlib import Path

import pytest

from dflash_pipeline.ingest.tokenizer import load_tokenizer, loaded_tokenizer

TARGET = Path(__file__).parents[2] / "examples" / "target"


@pytest.fixture
def folder(tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TARGET / name, tmp_path / name)
    return tmp_path


def test_the_same_files_are_loaded_once(folder):
    first = loaded_tokenizer(folder)
    assert loaded_tokenizer(folder) is first
    assert load_tokenizer(folder) is first.tokenizer


def test_a_changed_template_is_seen(folder):
    before = load_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    after = load_tokenizer(folder)
    assert after.get_chat_template() == "{{ messages[0].content }}" != before.get_chat_template()


def test_a_changed_vocabulary_is_seen(folder):
    before = loaded_tokenizer(folder).encoder
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace("<|im_end|>", "<|im_stop|>"), encoding="utf-8")
    after = loaded_tokenizer(folder).encoder
    [old], [new] = before.encode(["<|im_stop|>"]), after.encode(["<|im_stop|>"])
    assert (len(old.ids) > 1, len(new.ids)) == (True, 1)
