"""Answers by the small target: greedy, batched, cut clean."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.model.answers import Answer, AnswerSettings, answer_prompts

LIMIT = 115
TARGET = Path(__file__).parents[2] / "examples/target"


def prompt(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = [
    prompt("Tom has 3 apples and buys 4 more. How many apples does Tom have?"),
    prompt("A book costs $5. How much do 3 books cost?"),
    prompt("Ann walks 2 miles a day for a week, then 5 miles on Sunday. How many miles does she walk in all?"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(TARGET))


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(str(TARGET), dtype=torch.float32).eval()


@torch.inference_mode()
def plain_greedy(model, tokenizer, text, limit):
    """One answer by hand: one prompt, no padding, no cache, no generate()."""
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    for _ in range(limit):
        token = model(ids, use_cache=False).logits[0, -1].argmax()
        if token == tokenizer.eos_token_id:
            return Answer(text=tokenizer.decode(ids[0, start:]), complete=True)
        ids = torch.cat([ids, token.view(1, 1)], dim=1)
    return Answer(text=tokenizer.decode(ids[0, start:]), complete=False)


@pytest.fixture(scope="module")
def answers_by_hand(model, tokenizer):
    return [plain_greedy(model, tokenizer, text, LIMIT) for text in PROMPTS]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_a_batch_answers_as_the_model_does_alone(model, tokenizer, answers_by_hand, batch_size):
    answers = answer_prompts(model, tokenizer, PROMPTS, AnswerSettings(max_new_tokens=LIMIT, batch_size=batch_size))
    assert answers == answers_by_hand
    assert {answer.complete for answer in answers} == {True, False}
    assert not any("<|im_end|>" in answer.text for answer in answers)


def test_an_answer_at_its_limit_is_not_complete(model, tokenizer):
    [answer] = answer_prompts(model, tokenizer, PROMPTS[:1], AnswerSettings(max_new_tokens=3, batch_size=8))
    assert not answer.complete
    assert answer.text


def test_sampling_and_penalties_of_the_target_are_not_used(model, tokenizer, monkeypatch):
    settings = AnswerSettings(max_new_tokens=40, batch_size=3)
    greedy = answer_prompts(model, tokenizer, PROMPTS, settings)
    for name, value in (("do_sample", True), ("temperature", 3.0), ("top_k", 900), ("repetition_penalty", 1.8)):
        monkeypatch.setattr(model.generation_config, name, value)
    assert answer_prompts(model, tokenizer, PROMPTS, settings) == greedy


class Scripted:
    """A stand-in for a model: answers every prompt with given tokens."""

    device = torch.device("cpu")

    def __init__(self, model, tokens):
        self.generation_config, self.config, self._tokens = model.generation_config, model.config, tokens

    def generate(self, *, input_ids, attention_mask, generation_config):
        tokens = torch.tensor(self._tokens).expand(len(input_ids), -1)
        return torch.cat([input_ids, tokens], dim=1)


def scripted_answer(model, tokenizer, tokens):
    settings = AnswerSettings(max_new_tokens=len(tokens), batch_size=1)
    [answer] = answer_prompts(Scripted(model, tokens), tokenizer, PROMPTS[:1], settings)
    return answer


def test_a_cut_character_is_removed_and_a_whole_one_stays(model, tokenizer):
    ids = tokenizer("yes 😀", add_special_tokens=False)["input_ids"]
    assert "\ufffd" in tokenizer.decode(ids[:-1]), "the emoji is more than one token"
    assert scripted_answer(model, tokenizer, ids[:-1]) == Answer(text="yes ", complete=False)
    assert scripted_answer(model, tokenizer, ids) == Answer(text="yes 😀", complete=False)


def test_what_follows_the_end_marker_is_not_the_answer(model, tokenizer):
    ids = tokenizer("yes<|im_end|>no", add_special_tokens=False)["input_ids"]
    assert scripted_answer(model, tokenizer, ids) == Answer(text="yes", complete=True)


def test_an_answer_may_be_empty(model, tokenizer):
    assert scripted_answer(model, tokenizer, [tokenizer.eos_token_id]) == Answer(text="", complete=True)


def test_other_special_tokens_leave_no_text(model, tokenizer):
    ids = tokenizer("yes<|im_start|><|im_end|>", add_special_tokens=False)["input_ids"]
    assert scripted_answer(model, tokenizer, ids) == Answer(text="yes", complete=True)


def test_no_prompts_no_answers_and_no_empty_prompt(model, tokenizer):
    settings = AnswerSettings(max_new_tokens=3, batch_size=2)
    assert answer_prompts(model, tokenizer, [], settings) == []
    with pytest.raises(Refused, match="empty prompt"):
        answer_prompts(model, tokenizer, [""], settings)


def test_batch_size_is_no_part_of_the_identity():
    one, two, other = (AnswerSettings(max_new_tokens=n, batch_size=b) for n, b in ((8, 1), (8, 64), (9, 1)))
    assert one.fingerprint == two.fingerprint != other.fingerprint
    with pytest.raises(ContractBroken, match="max_new_tokens 0"):
        AnswerSettings(max_new_tokens=0, batch_size=1)


def test_what_is_drawn_hangs_on_seed_and_prompts_alone(model, tokenizer):
    def drawn(**settings):
        return answer_prompts(
            model, tokenizer, PROMPTS[:2], AnswerSettings(max_new_tokens=12, batch_size=2, temperature=1.5, **settings)
        )

    torch.manual_seed(5)
    first, state = drawn(seed=1), torch.get_rng_state()
    assert first == drawn(seed=1) != drawn(seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    greedy = answer_prompts(model, tokenizer, PROMPTS[:2], AnswerSettings(max_new_tokens=12, batch_size=2))
    assert first != greedy
    # Only the best token is left to draw from.
    assert drawn(seed=1, top_k=1) == greedy
    assert drawn(seed=1, top_p=1e-6) == greedy


def test_greedy_answers_keep_the_name_they_had_before_there_was_sampling():
    plain = AnswerSettings(max_new_tokens=8, batch_size=1)
    assert plain.fingerprint == fingerprint(max_new_tokens=8, version=1)
    others = [{"temperature": 1.0}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "top_k": 3}]
    others += [{"served": "chat m"}, {"served": "chat m", "served_thinking": True}, {"served": "completions m"}]
    assert len({replace(plain, **other).fingerprint for other in others} | {plain.fingerprint}) == 7


@pytest.mark.parametrize("wrong", [{"temperature": -0.1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": 0}])
def test_sampling_has_bounds(wrong):
    with pytest.raises(ContractBroken, match="temperature"):
        AnswerSettings(max_new_tokens=8, batch_size=1, **wrong)
