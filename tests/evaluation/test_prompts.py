"""Prompts come in the forms of benchmark files; what is none of them is named by its line."""

import gzip

import pytest
from transformers import AutoTokenizer

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.prompts import read_prompts


@pytest.fixture(scope="module")
def tokenizer(example_target):
    return AutoTokenizer.from_pretrained(example_target)


def render(messages):
    return "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages) + "<|im_start|>assistant\n"


def read(tmp_path, tokenizer, *rows, limit=99):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    found = read_prompts(path, render=render, tokenizer=tokenizer, limit=limit)
    return [tokenizer.decode(prompt.ids) for prompt in found]


ASKED = "<|im_start|>user\nhow many ?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "row",
    [
        '{"question": "how many ?", "answer": "4"}',
        '{"prompt": "how many ?"}',
        '{"turns": ["how many ?", "and then ?"]}',
        '{"messages": [{"role": "user", "content": "how many ?"}]}',
        '{"messages": [{"role": "user", "content": "how many ?"}, {"role": "assistant", "content": "4"}]}',
    ],
)
def test_every_form_gives_the_prompt_without_its_answer(tmp_path, tokenizer, row):
    assert read(tmp_path, tokenizer, row) == [ASKED]


def test_order_limit_and_empty_lines(tmp_path, tokenizer):
    rows = ['{"prompt": "a"}', "", '{"prompt": "b"}', '{"prompt": "c"}']
    assert [text.split("\n")[1][0] for text in read(tmp_path, tokenizer, *rows, limit=2)] == ["a", "b"]


def test_line_separators_inside_a_text_do_not_split_a_row(tmp_path, tokenizer):
    assert len(read(tmp_path, tokenizer, '{"prompt": "a\u2028b\u0085c"}')) == 1


@pytest.mark.parametrize(
    "row",
    [
        "{",
        "[]",
        "{}",
        '{"prompt": 5}',
        '{"turns": []}',
        '{"messages": []}',
        '{"messages": [{"role": "critic", "content": "x"}]}',
        '{"messages": [{"role": "assistant", "content": "x"}]}',
    ],
)
def test_an_unknown_form_is_refused_by_its_line(tmp_path, tokenizer, row):
    with pytest.raises(Refused, match=r"p\.jsonl:2"):
        read(tmp_path, tokenizer, '{"prompt": "a"}', row)


def test_half_a_character_is_refused_by_its_line(tmp_path, tokenizer):
    with pytest.raises(Refused, match=r":2: half of a character"):
        read(tmp_path, tokenizer, '{"question": "fine"}', '{"question": "a\\ud800b"}')


def test_no_prompt_at_all_is_refused(tmp_path, tokenizer):
    with pytest.raises(Refused, match="no prompt"):
        read(tmp_path, tokenizer, "")
    with pytest.raises(Refused, match="not readable"):
        read_prompts(tmp_path / "absent", render=render, tokenizer=tokenizer, limit=1)


def test_text_in_another_encoding_is_refused_by_its_line_and_byte(tmp_path, tokenizer):
    path = tmp_path / "p.jsonl"
    path.write_bytes('{"prompt": "é"}\n'.encode() + '{"prompt": "é"}\n'.encode("latin-1"))
    with pytest.raises(Refused, match=r"p\.jsonl:2: no UTF-8 text: byte 0xe9 at column 13; save the file in UTF-8"):
        read_prompts(path, render=render, tokenizer=tokenizer, limit=9)


SOURCES = [
    ('{"prompt": "a"}', "p.jsonl.gz"),
    ('{"question_id": 81, "category": "writing", "turns": ["a", "b"]}', "writing"),
    ('{"question": "a", "source": "mine"}', "mine"),
    ('{"task_id": "HumanEval/0", "prompt": "a", "category": ""}', "p.jsonl.gz"),
]


def test_packed_files_and_where_each_prompt_comes_from(tmp_path, tokenizer):
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(row for row, _ in SOURCES).encode()))
    found = read_prompts(path, render=render, tokenizer=tokenizer, limit=9)
    assert [prompt.source for prompt in found] == [source for _, source in SOURCES]
    assert len({prompt.ids.tobytes() for prompt in found}) == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:-8] + bytes(8)])
def test_a_damaged_packed_file_is_refused(tmp_path, tokenizer, damage):
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(damage(gzip.compress(b'{"prompt": "a"}\n' * 50)))
    with pytest.raises(Refused, match="not readable"):
        read_prompts(path, render=render, tokenizer=tokenizer, limit=99)
