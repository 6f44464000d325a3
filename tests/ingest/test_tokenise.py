"""The chat cases of tests/cases, token by token, and what tokenising promises beside."""

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_pipeline.contracts.conversation import Conversation, Message, PreTokenised
from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.sample import DroppedSample, Sample
from dflash_pipeline.ingest import tokenise as module
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.encoder import token_spans
from dflash_pipeline.ingest.tokenise import TokenRule, tokenise

CASES = Path(__file__).parents[1] / "cases"
END = "<|im_end|>"

EXPECTED = {
    "ch_double_bos": [("q", 26, "yo[END]", 3)],
    "ch_no_generation_markers": [("q", None, "yo[END]", 3)],
    "ch_reasoning_field": [("r", 43, "<think>\ntwo and two\n</think>\n\n4[END]", 19)],
    "ch_think_in_content": [("r", 43, "<think>\ntwo and two\n</think>\n\n4[END]", 19)],
    "ch_inserted_empty_think": [("r", 32, "4[END]", 2)],
    "ch_truncated_before_answer": [("long", None, "no_supervised_tokens", 0), ("fits", 25, "yo[END]", 3)],
    "ch_truncated_in_answer": [("cut", 30, "abcdefghi", 9)],
    "ch_tool_turns": [("t", 106, "<tool_call>clock</tool_call>[END]noon[END]", 34)],
    "ch_multi_turn": [("mt", 61, "a1[END]a2[END]", 6)],
}


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    """Builds the renderer of a case: a folder around a toy tokenizer, and a template beside it."""
    made = {}

    def build(tokenizer="toy_tokenizer.json", template="chatml.jinja"):
        if (tokenizer, template) not in made:
            folder = tmp_path_factory.mktemp("tokenizer")
            (folder / "tokenizer.json").write_bytes((CASES / "fixtures" / tokenizer).read_bytes())
            (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
            made[tokenizer, template] = ChatRenderer(folder, CASES / "fixtures" / template)
        return made[tokenizer, template]

    return build


def conversation(name, *turns):
    messages = tuple(Message(role=role, content=content) for role, content in turns)
    return Conversation(conversation_id=name, messages=messages, split="train", file="f.jsonl", line=1)


def case_conversation(row):
    messages = tuple(
        Message(role=m["role"], content=m["content"], reasoning=m.get("reasoning_content")) for m in row["messages"]
    )
    return Conversation(conversation_id=row["id"], messages=messages, split="train", file="f.jsonl", line=1)


def run_case(name, renderer, **options):
    case = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    made = renderer(case["tokenizer"], case["template"])
    rows = [case_conversation(row) for row in case.get("rows", [case.get("row")])]
    settings = {"max_length": case.get("max_length", 4096), "overlong": "truncate"} | options
    return made.tokenizer, list(tokenise(rows, made, TokenRule(**settings)))


def supervised_text(tokenizer, sample):
    ids = np.concatenate([sample.input_ids[start:end] for start, end in sample.spans])
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_every_chat_case_is_expected_here():
    assert {path.stem for path in CASES.glob("ch_*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_case(name, renderer):
    tokenizer, outcomes = run_case(name, renderer)
    for outcome, (conversation_id, num_tokens, text, num_supervised) in zip(outcomes, EXPECTED[name], strict=True):
        assert outcome.conversation_id == conversation_id
        if isinstance(outcome, DroppedSample):
            assert (outcome.reason, num_supervised) == (text, 0)
            continue
        assert supervised_text(tokenizer, outcome) == text.replace("[END]", END)
        assert outcome.num_supervised == num_supervised
        assert num_tokens in (None, outcome.num_tokens)


def test_the_template_alone_adds_the_begin_token(renderer):
    tokenizer, [sample] = run_case("ch_double_bos", renderer)
    assert sample.input_ids.tolist().count(tokenizer.convert_tokens_to_ids("<s>")) == 1


def test_a_thought_in_its_field_or_in_the_text_gives_the_same_sample(renderer):
    (_, [field]), (_, [text]) = (run_case(f"ch_{n}", renderer) for n in ("reasoning_field", "think_in_content"))
    assert field.input_ids.tolist() == text.input_ids.tolist()
    assert field.spans == text.spans


def test_last_turn_only(renderer):
    tokenizer, [sample] = run_case("ch_multi_turn", renderer, supervise="last")
    assert supervised_text(tokenizer, sample) == "a2" + END
    assert sample.num_tokens == 61


def test_overlong_samples_can_be_dropped(renderer):
    _, [outcome] = run_case("ch_truncated_in_answer", renderer, overlong="drop")
    assert outcome == DroppedSample(conversation_id="cut", reason="too_long")


def test_one_supervised_token_is_too_few(renderer):
    # 21 tokens stand before the answer: a cut after 22 leaves one of its tokens, after 23 two.
    rows = [conversation("q", ("user", "hi"), ("assistant", "yo"))]
    [one] = tokenise(rows, renderer(), TokenRule(max_length=22, overlong="truncate"))
    [two] = tokenise(rows, renderer(), TokenRule(max_length=23, overlong="truncate"))
    assert one == DroppedSample(conversation_id="q", reason="too_few_supervised_tokens")
    assert two.spans == ((21, 23),)


def test_a_conversation_that_the_template_refuses_costs_no_other(renderer, tmp_path):
    made = renderer()
    template = tmp_path / "strict.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    strict = ChatRenderer(Path(made.tokenizer.name_or_path), template)
    rows = [
        conversation("a", ("user", "u"), ("assistant", "a1")),
        conversation("b", ("user", "u"), ("tool", "t"), ("assistant", "a1")),
        conversation("c", ("user", "u"), ("assistant", "a1")),
    ]
    first, second, third = tokenise(rows, strict, TokenRule(max_length=99, overlong="truncate"))
    assert second == DroppedSample(conversation_id="b", reason="template_error")
    assert first.input_ids.tolist() == third.input_ids.tolist()


def test_order_and_tokens_do_not_depend_on_the_batch(renderer, monkeypatch):
    rows = [conversation(f"c{i}", ("user", "u" * i), ("assistant", f"a{i} é😀")) for i in range(1, 9)]
    together = list(tokenise(rows, renderer(), TokenRule(max_length=35, overlong="drop")))
    monkeypatch.setattr(module, "CONVERSATIONS_AT_ONCE", 3)
    apart = list(tokenise(iter(rows), renderer(), TokenRule(max_length=35, overlong="drop")))
    assert [o.conversation_id for o in apart] == [row.conversation_id for row in rows]
    assert {type(o) for o in apart} == {Sample, DroppedSample}
    for one, other in zip(together, apart, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Sample):
            assert (one.input_ids.tolist(), one.spans) == (other.input_ids.tolist(), other.spans)


def test_a_token_across_an_edge_is_left_out():
    # Header "x\n" and body "\n\nab" of a tokenizer that joins line feeds: x | \n\n\n | a | b | end
    offsets = np.array([(0, 1), (1, 4), (4, 5), (5, 6), (6, 9)])
    assert token_spans([(2, 9)], offsets) == [(2, 5)]
    assert token_spans([(0, 3)], offsets) == [(0, 1)]
    assert token_spans([(4, 5), (5, 9)], offsets) == [(2, 5)], "spans that touch are one"
    assert token_spans([(2, 4)], offsets) == []


def test_tokens_of_one_character_and_tokens_reported_as_nothing():
    # An emoji in three byte tokens; then a lone space that the tokenizer reports at its right edge, before "a".
    offsets = np.array([(0, 1), (0, 1), (0, 1), (2, 2), (2, 3)])
    assert token_spans([(0, 1)], offsets) == [(0, 3)]
    assert token_spans([(2, 3)], offsets) == [(4, 5)]
    assert token_spans([(1, 3)], offsets) == [(3, 5)]


def test_a_limit_that_leaves_nothing_to_draft_is_refused(renderer):
    with pytest.raises(Refused, match="at least 2"):
        next(tokenise([], renderer(), TokenRule(max_length=1, overlong="truncate")))


@pytest.mark.parametrize("spans", [(), ((1, 1),), ((0, 4),), ((1, 2), (0, 1)), ((0, 2), (1, 3)), ((-1, 2),)])
def test_a_sample_with_impossible_spans_cannot_be_made(spans):
    with pytest.raises(ContractBroken):
        Sample(conversation_id="c", split="train", input_ids=np.arange(3, dtype=np.int32), spans=spans)
    with pytest.raises(ContractBroken, match="int32"):
        Sample(conversation_id="c", split="train", input_ids=np.arange(3.0), spans=((0, 2),))


def outcome_of(renderer, **form):
    rule = form.pop("rule", TokenRule(max_length=200))
    row = Conversation(conversation_id="d", split="train", file="f", line=1, **form)
    [outcome] = tokenise([row], renderer, rule)
    return outcome


def test_a_document_is_one_supervised_text(renderer):
    made = renderer()
    outcome = outcome_of(made, document="A raw text.")
    assert outcome.spans == ((0, 11),)
    assert supervised_text(made.tokenizer, outcome) == "A raw text."


def test_the_begin_token_that_the_tokenizer_adds_to_a_document_carries_no_loss(renderer):
    made = renderer("toy_tokenizer_bos.json", "chatml_bos.jinja")
    outcome = outcome_of(made, document="ab")
    assert made.tokenizer.decode(outcome.input_ids) == "<s>ab"
    assert outcome.spans == ((1, 3),)
    assert outcome_of(made, document="<s>ab").num_tokens == 3


def test_in_a_rendered_conversation_the_assistants_turns_carry_the_loss(renderer):
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
    made = renderer()
    assert supervised_text(made.tokenizer, outcome_of(made, document=text)) == "yo" + END


def test_tokens_pass_through(renderer):
    tokenised = PreTokenised(token_ids=(1, 2, 3, 4, 5), loss_mask=(False, True, True, False, True))
    outcome = outcome_of(renderer(), tokenised=tokenised)
    assert outcome.input_ids.tolist() == [1, 2, 3, 4, 5]
    assert outcome.spans == ((1, 3), (4, 5))
    cut = outcome_of(renderer(), tokenised=tokenised, rule=TokenRule(max_length=3))
    assert (cut.num_tokens, cut.spans, cut.num_cut) == (3, ((1, 3),), 2)


def test_tokens_that_the_tokenizer_does_not_have(renderer):
    tokenised = PreTokenised(token_ids=(1, 10**6), loss_mask=(True, True))
    assert outcome_of(renderer(), tokenised=tokenised).reason == "unknown_token"


def test_thoughts_without_a_loss(renderer):
    for name in ("reasoning_field", "think_in_content"):
        tokenizer, [sample] = run_case(f"ch_{name}", renderer, thinking=False)
        assert supervised_text(tokenizer, sample) == "4" + END
        assert sample.num_tokens == 43, "the tokens stay"


def test_what_the_template_opens_can_carry_the_loss(renderer):
    tokenizer, [sample] = run_case("ch_inserted_empty_think", renderer, generation_prefix=True)
    assert supervised_text(tokenizer, sample) == "<think>\n\n</think>\n\n4" + END


def test_what_was_cut_is_counted(renderer):
    _, [cut] = run_case("ch_truncated_in_answer", renderer)
    _, [whole] = run_case("ch_multi_turn", renderer)
    assert cut.num_cut > 0
    assert whole.num_cut == 0


CALL = '[{"type":"function","function":{"name":"clock","arguments":"{}"}}]'


@pytest.mark.parametrize(("text", "printed"), [("", CALL), ("Look:", f"Look:\n{CALL}")])
def test_calls_reach_a_template_that_knows_none_as_json(renderer, text, printed):
    made = renderer()
    messages = (
        Message(role="user", content="time?"),
        Message(role="assistant", content=text, tool_calls=CALL),
        Message(role="tool", content="noon"),
        Message(role="assistant", content="It is noon."),
    )
    assert supervised_text(made.tokenizer, outcome_of(made, messages=messages)) == f"{printed}{END}It is noon.{END}"
