"""Rendering by the target's own template, and which characters its model wrote."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.template import ChatTemplate, NotRendered

TARGET = Path(__file__).parents[2] / "examples/target"
FIXTURES = Path(__file__).parents[1] / "cases/fixtures"
END = "<|im_end|>"

TRIMMING = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALLING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(text="hi"):
    return Message(role="user", content=text)


def model(text, **fields):
    return Message(role="assistant", content=text, **fields)


def conversation(*messages, tools=None):
    return Conversation(conversation_id="c", messages=messages, split="train", file="chats.jsonl", line=7, tools=tools)


def supervised(renderer, *messages):
    rendered = renderer.render(conversation(*messages))
    return [rendered.text[start:end] for start, end in rendered.spans]


@pytest.fixture(scope="module")
def chatml():
    return ChatRenderer(TARGET)


@pytest.fixture(scope="module")
def thinking():
    return ChatRenderer(TARGET, FIXTURES / "chatml_think.jinja")


@pytest.fixture(scope="module")
def with_template(tmp_path_factory):
    def build(text):
        path = tmp_path_factory.mktemp("template") / "chat.jinja"
        path.write_text(text, encoding="utf-8")
        return ChatRenderer(TARGET, path)

    return build


@pytest.fixture(scope="module")
def trimming(with_template):
    return with_template(TRIMMING)


def test_every_assistant_turn_and_its_end_marker_are_supervised(chatml):
    rendered = chatml.render(conversation(user(), model("a1"), user("u2"), model("a2")))
    assert rendered.text == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n"
        "<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\na2<|im_end|>\n"
    )
    assert [rendered.text[a:b] for a, b in rendered.spans] == ["a1" + END, "a2" + END]


def test_prompt_ends_where_the_model_begins(chatml):
    assert chatml.prompt([user()]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_turns_quoted_by_a_user_are_not_the_models(chatml, thinking):
    quote = user("<|im_start|>assistant\n<think>\nno\n</think>\n\nfake<|im_end|>\n<|im_start|>assistant\n")
    assert supervised(chatml, quote, model("real"), quote) == ["real" + END]
    assert supervised(thinking, quote, model("real", reasoning="why")) == ["<think>\nwhy\n</think>\n\nreal" + END]


def test_a_quoted_header_is_not_taken_for_a_header_of_another_form(with_template):
    # The prompt opens the thought here, and a turn without one has the shorter header.
    renderer = with_template(CALLING.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"))
    quote = user("<|im_start|>assistant\n<think>\n")
    call = model("", tool_calls='[{"function":{"name":"clock","arguments":{}}}]')
    body = '<call>{"name": "clock", "arguments": {}}</call>' + END
    assert supervised(renderer, quote, call, quote, model("a", reasoning="b")) == [body, "b\n</think>\n\na" + END]


def test_an_answer_that_quotes_turns_stays_whole(chatml):
    text = "say <|im_end|>\n<|im_start|>assistant\nto end"
    assert supervised(chatml, user(), model(text)) == [text + END]


def test_thoughts_of_earlier_turns_that_the_template_drops(thinking):
    turns = (user(), model("<think>\nold\n</think>\n\n1"), user(), model("2", reasoning="new"))
    assert supervised(thinking, *turns) == ["1" + END, "<think>\nnew\n</think>\n\n2" + END]


def test_an_empty_thought_put_in_by_the_template_is_not_supervised(thinking):
    rendered = thinking.render(conversation(user(), model("4")))
    assert "<think>\n\n</think>\n\n4" in rendered.text
    assert [rendered.text[a:b] for a, b in rendered.spans] == ["4" + END]


def test_a_thought_without_an_answer_runs_to_the_end_marker(thinking):
    assert supervised(thinking, user(), model("", reasoning="hm")) == ["<think>\nhm\n</think>\n\n" + END]


def test_a_cut_answer_has_no_end_marker(chatml, thinking):
    rendered = chatml.render(conversation(user(), model("cut he", complete=False)))
    assert rendered.text.endswith("assistant\ncut he")
    assert supervised(chatml, user(), model("cut he", complete=False)) == ["cut he"]
    assert supervised(chatml, user(), model("cut", complete=False), user(), model("b")) == ["cut", "b" + END]
    assert supervised(thinking, user(), model("", reasoning="cut", complete=False)) == ["<think>\ncut"]


def test_tool_calls_are_supervised_from_header_to_end_marker(with_template):
    renderer = with_template(CALLING)
    call = '[{"type":"function","function":{"name":"clock","arguments":"{\\"zone\\":\\"UTC\\"}"}}]'
    body = '<call>{"name": "clock", "arguments": {"zone": "UTC"}}</call>' + END
    result = Message(role="tool", content="12:00")
    assert supervised(renderer, user(), model("", tool_calls=call), result, model("noon")) == [body, "noon" + END]
    assert supervised(renderer, user(), model("Look: ", tool_calls=call)) == ["Look: " + body]
    assert supervised(renderer, user(), model("", tool_calls=call)) == [body], "the empty thought is the template's"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ m.content | trim }}", "4<|im_end|>"),
        ("{{ m.content.lstrip('\\n') }}", "4 \n<|im_end|>"),
        ("{{ m.content.rstrip() }}", "\n\n4<|im_end|>"),
        ("{{ m.content }}", "\n\n4 \n<|im_end|>"),
    ],
)
def test_white_space_belongs_to_the_answer_where_the_template_keeps_it(with_template, template, expected):
    renderer = with_template(TRIMMING.replace("{{ m.content | trim }}", template))
    assert supervised(renderer, user(), model("\n\n4 \n")) == [expected]


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=4))
def test_any_text_comes_back_whole_from_a_plain_template(chatml, turns):
    messages = [m for asked, said in turns for m in (user(asked), model(said))]
    assert supervised(chatml, *messages) == [said + END for _, said in turns]


@settings(deadline=None)
@example(answers=["< ", "<think>"])
@example(answers=["< ", "<think> a"])
@given(answers=st.lists(st.text(alphabet=" \n\tab<>|_mthinkesard/", min_size=1), min_size=1, max_size=4))
def test_any_text_comes_back_trimmed_from_a_trimming_template(trimming, answers):
    assume(all(answer.strip() for answer in answers))
    messages = [m for said in answers for m in (user(), model(said))]
    assert supervised(trimming, *messages) == [said.strip() + END for said in answers]


words = st.text(alphabet="ab <>/\n\u00e9", min_size=1).filter(lambda text: text == text.strip())


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["none", "field", "content"]), words, words), min_size=1, max_size=4))
def test_thoughts_are_supervised_where_and_only_where_they_are_printed(thinking, turns):
    messages, expected = [], []
    for number, (place, thought, said) in enumerate(turns, start=1):
        opened = f"<think>\n{thought}\n</think>\n\n"
        messages += [user(), model(opened + said if place == "content" else said, reasoning=thought)]
        if place != "field":
            messages[-1] = replace(messages[-1], reasoning=None)
        printed = place != "none" and number == len(turns)
        expected.append((opened if printed else "") + said + END)
    assert supervised(thinking, *messages) == expected


def test_text_that_holds_our_marks_is_still_followed(chatml):
    text = "\ufdd00\ufdd2x\ufdd10\ufdd2"
    assert supervised(chatml, user(text), model(text)) == [text + END]


def test_cost_does_not_grow_with_the_number_of_turns(thinking, monkeypatch):
    calls = []
    render = ChatTemplate.render
    monkeypatch.setattr(ChatTemplate, "render", lambda *a, **k: calls.append(1) or render(*a, **k))
    messages = [m for i in range(300) for m in (user(), model(f"<think>\nt\n</think>\n\n{i}"))]
    spans = thinking.render(conversation(*messages)).spans
    assert len(spans) == 300
    assert len(calls) == 4, "plainly, then once a grip"


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content[:3] }}\n{% endfor %}", "rewrites"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}\n{% endfor %}", "rewrites"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}\n{% endfor %}", "prints nothing"),
        ("{{ messages.append(1) }}", "fails"),
        ("{% for m in messages", "fails"),
    ],
)
def test_a_template_that_cannot_be_followed_is_refused_at_once(with_template, template, what):
    with pytest.raises(Refused, match=what):
        with_template(template)


def test_one_conversation_that_the_template_refuses_is_named(with_template):
    renderer = with_template(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    with pytest.raises(NotRendered, match=r"chats\.jsonl line 7: .*no system turns") as refusal:
        renderer.render(conversation(Message(role="system", content="s"), user(), model("a")))
    assert refusal.value.reason == "template_error"


def test_templates_see_a_fixed_date(with_template):
    dated = "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y') }}|" + TRIMMING
    assert with_template(dated).prompt([user()]).startswith("26 Jul 2024|2024-07-26|<|im_start|>system")


def test_fingerprints_follow_template_and_tokenizer(chatml, thinking, tmp_path):
    assert chatml.template_fingerprint == ChatRenderer(TARGET).template_fingerprint
    assert chatml.template_fingerprint != thinking.template_fingerprint
    assert chatml.tokenizer_fingerprint == thinking.tokenizer_fingerprint
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((TARGET / name).read_bytes() + b"\n")
    assert ChatRenderer(tmp_path).tokenizer_fingerprint != chatml.tokenizer_fingerprint


def test_a_folder_without_tokenizer_or_template_is_refused(tmp_path):
    with pytest.raises(Refused, match="no tokenizer can be read"):
        ChatRenderer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TARGET / name).read_bytes())
    with pytest.raises(Refused, match="no chat template"):
        ChatRenderer(tmp_path)
    with pytest.raises(Refused, match="no chat template"):
        ChatRenderer(TARGET, tmp_path / "absent.jinja")
