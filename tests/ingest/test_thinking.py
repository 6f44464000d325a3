"""Thoughts are found in whatever form a conversation came, and an empty one is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_pipeline.contracts.conversation import Conversation, Message, PreTokenised
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.thinking import ThoughtFinder, holds_thought, open_thought
from tests.conftest import ROOT

TARGET = ROOT / "examples" / "target"
EMPTY = Conversation(conversation_id="c", split="train", file="f", line=1, document="x")


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(TARGET)


@pytest.mark.parametrize(
    ("text", "thinks"),
    [
        ("4", False),
        ("", False),
        ("<think>\n2 + 2\n</think>\n\n4", True),
        ("<think>\n\n</think>\n\n4", False),
        ("2 + 2\n</think>\n\n4", True),  # Opened by the generation prompt.
        ("\n</think>\n\n4", False),
        ("<think>\n2 + ", True),
        ("<think>\n ", False),
        ("<think></think> 4 <think>again</think>", True),
    ],
)
def test_a_thought_is_text_between_its_tags(text, thinks):
    assert holds_thought(text) is thinks


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("user\nassistant\n", ""),
        ("user\nassistant\n<think>\n", "<think>\n"),
        ("assistant\n<think>", "<think>"),
        ("assistant\n<think>\n\n</think>\n\n", ""),
        ("user said <think> and more\nassistant\n", ""),
    ],
)
def test_a_prompt_may_open_a_thought(prompt, opened):
    assert open_thought(prompt) == opened


def chat(*answers: Message) -> Conversation:
    user = Message(role="user", content="<think>not the model's</think>")
    return replace(EMPTY, document=None, messages=(user, *answers))


@pytest.mark.parametrize(
    ("answers", "thinks"),
    [
        ((Message(role="assistant", content="4"),), False),
        ((Message(role="assistant", content="4", reasoning="2 + 2"),), True),
        ((Message(role="assistant", content="4", reasoning=" "),), False),
        ((Message(role="assistant", content="4"), Message(role="assistant", content="<think>a</think>5")), True),
    ],
)
def test_one_answer_with_a_thought_is_enough(renderer, answers, thinks):
    assert ThoughtFinder(renderer).thinks(chat(*answers)) is thinks


def test_documents_have_a_mode_where_they_are_conversations(renderer):
    finder = ThoughtFinder(renderer)
    assert finder.thinks(replace(EMPTY, document="a <think>tag</think> in a book")) is None
    for answer, thinks in (("4", False), ("<think>2</think>4", True)):
        text = f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        assert finder.thinks(replace(EMPTY, document=text)) is thinks


def test_tokens_are_read_where_thinking_has_a_token(renderer, tmp_path):
    text = "<think>two</think>4"
    ids = tuple(renderer.tokenizer(text)["input_ids"])
    row = replace(EMPTY, document=None, tokenised=PreTokenised(token_ids=ids, loss_mask=(True,) * len(ids)))
    assert ThoughtFinder(renderer).thinks(row) is False  # To this tokenizer the tags are pieces of text.
    taught = ChatRenderer(TARGET)
    taught.tokenizer = type(taught.tokenizer).from_pretrained(str(TARGET))
    taught.tokenizer.add_tokens(["<think>", "</think>"])
    ids = tuple(taught.tokenizer(text)["input_ids"])
    row = replace(row, tokenised=PreTokenised(token_ids=ids, loss_mask=(True,) * len(ids)))
    assert ThoughtFinder(taught).thinks(row) is True
