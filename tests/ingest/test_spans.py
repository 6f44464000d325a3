"""Turns read off the text, turns followed through it, thoughts inside them, and rendered text that has them already."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.ingest import spans as module
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.spans import TurnForm, marked_turns, without

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "cases" / "fixtures"
CHANNELS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content %}analysis: {{ m.reasoning_content }}; final: {% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    def renderer(template):
        path = tmp_path_factory.mktemp("template") / "chat.jinja"
        path.write_text(template, encoding="utf-8")
        return ChatRenderer(ROOT / "examples" / "target", path)

    return renderer


@pytest.fixture(scope="module")
def thinking():
    return ChatRenderer(ROOT / "examples" / "target", FIXTURES / "chatml_think.jinja")


@pytest.fixture(scope="module")
def plain():
    return ChatRenderer(ROOT / "examples" / "target")


def model(text, **fields):
    return Message(role="assistant", content=text, **fields)


def rendered(renderer, *answers):
    messages = tuple(m for answer in answers for m in (Message(role="user", content="q"), answer))
    return renderer.render(Conversation(conversation_id="c", messages=messages, split="train", file="f", line=1))


def thoughts(renderer, *answers):
    made = rendered(renderer, *answers)
    return [made.text[a:b] for turn in made.turns for a, b in turn.thoughts]


def said_without_thought(renderer, *answers):
    made = rendered(renderer, *answers)
    holes = [t for turn in made.turns for t in turn.thoughts]
    return [made.text[a:b] for a, b in without(made.spans, holes)]


answers = st.text(alphabet="ab \n<>/think|é", min_size=1).filter(str.strip)


@settings(deadline=None)
@given(said=st.lists(answers, min_size=1, max_size=4))
def test_what_is_read_off_is_what_is_followed(plain, thinking, said):
    """Both ways on the same rows, with a template that prints as it is and one that puts thoughts in."""
    for renderer in (plain, thinking):
        dicts = [d for text in said for d in ({"role": "user", "content": "q"}, {"role": "assistant", "content": text})]
        template, form = renderer.renderer.template, renderer.renderer.form
        text = template.render(dicts, None, where="here")
        read = module.read_off(dicts, text, form)
        unread = TurnForm(headers=form.headers, end_markers=form.end_markers, own=False)
        followed = module.find_turns(
            dicts, lambda marked, t=template: t.render(marked, None, where="here"), text, form=unread, cut=frozenset()
        )
        assert followed is not None
        assert read is None or read == tuple(followed)


def test_a_header_without_an_answer_of_the_model_is_not_read_off(plain):
    form = plain.renderer.form
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    text = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    assert module.read_off(messages, text, form) is not None
    for more in ("<|im_start|>assistant\nnot in the row<|im_end|>\n", "<|im_start|>assistant\na<|im_end|>\n"):
        assert module.read_off(messages, text + more, form) is None


def test_plain_answers_are_rendered_once(thinking, monkeypatch):
    monkeypatch.setattr(module, "_turns", None)
    assert len(rendered(thinking, model("a"), model("b")).turns) == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (model("4", reasoning="why"), "<think>\nwhy\n</think>\n\n"),
        (model("<think>\nwhy\n</think>\n\n4"), "<think>\nwhy\n</think>\n\n"),
    ],
)
def test_a_thought_is_the_same_in_its_field_and_in_the_text(thinking, answer, expected):
    assert thoughts(thinking, answer) == [expected]
    assert said_without_thought(thinking, answer) == ["4<|im_end|>"]


def test_thoughts_in_text_that_the_template_prints_as_it_is(plain):
    assert said_without_thought(plain, model("a<think>b</think> c<think>d</think>")) == ["a", "c", "<|im_end|>"]
    assert said_without_thought(plain, model("<think>never closed")) == []


def test_a_thought_that_the_prompt_opens(build):
    renderer = build(OPENED)
    answer = model("4", reasoning="why")
    assert thoughts(renderer, answer) == ["why\n</think>\n\n"]
    made = rendered(renderer, answer)
    [turn] = made.turns
    assert made.text[turn.header_end : turn.start] == "<think>\n"


def test_thoughts_between_marks_that_nobody_knows(build):
    renderer = build(CHANNELS)
    assert thoughts(renderer, model("4", reasoning="why")) == ["analysis: why; final: "]
    assert said_without_thought(renderer, model("4", reasoning="why")) == ["4<|im_end|>"]


def test_text_that_is_rendered_already(thinking):
    form = thinking.renderer.form
    text = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nw\n</think>\n\na<|im_end|>\n"
    more = text + "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nno end"
    turns = marked_turns(more, form)
    assert [more[t.start : t.end] for t in turns] == ["<think>\nw\n</think>\n\na<|im_end|>", "no end"]
    assert [more[a:b] for t in turns for a, b in t.thoughts] == ["<think>\nw\n</think>\n\n"]
    assert marked_turns("an article about assistants", form) == ()


@given(st.sets(st.integers(0, 40), max_size=12), st.sets(st.integers(0, 40), max_size=12))
def test_holes(edges, holes):
    def pairs(numbers):
        ordered = sorted(numbers)
        return list(zip(ordered[::2], ordered[1::2], strict=False))

    def inside(spans):
        return {i for a, b in spans for i in range(a, b)}

    left = without(pairs(edges), pairs(holes))
    assert inside(left) == inside(pairs(edges)) - inside(pairs(holes))
    assert all(a < b for a, b in left)
    assert left == sorted(left)
