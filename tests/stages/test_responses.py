"""The target's answers: cached, saved batch by batch, and followed turn by turn."""

import json
from collections.abc import Sequence

import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.answers import Answer
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages import responses
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import conversations_with_answers, make_responses
from dflash_pipeline.store.layout import Storage
from tests.conftest import write_recipe


class Target:
    """Stands in for the model: answers by a rule, and remembers what it was asked, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.answers: dict[str, Answer] = {}
        self.dies_at: int | None = None

    def speak(self, model: object, tokenizer: object, prompts: Sequence[str], settings: object) -> list[Answer]:
        if self.dies_at == len(self.batches):
            raise KeyboardInterrupt
        self.batches.append(list(prompts))
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: str) -> Answer:
        for fragment, answer in self.answers.items():
            if fragment in prompt:
                return answer
        return Answer(text=f"echo {len(prompt)}", complete=True)

    @property
    def asked(self) -> list[str]:
        return [prompt for batch in self.batches for prompt in batch]


@pytest.fixture
def target(monkeypatch) -> Target:
    stand_in = Target()
    monkeypatch.setattr(responses, "load_causal_lm", lambda path, *, device: None)
    monkeypatch.setattr(responses, "answer_prompts", stand_in.speak)
    return stand_in


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(root=tmp_path / "storage")


def turns(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


SINGLE = [turns(f"question {n}", f"answer {n}") for n in range(7)]


def ingested(tmp_path, storage, rows, **responses_settings):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": f"c{n}", "messages": row}) + "\n" for n, row in enumerate(rows)))
    settings = {"batch_size": 3, "max_new_tokens": 24, **responses_settings}
    data = {"sources": [{"path": str(source)}], "max_rows": None}
    recipe = load_recipe(write_recipe(tmp_path / "recipe.yaml", data=data, responses=settings))
    return recipe, make_conversations(recipe, storage).record


def texts(recipe, storage, ingestion, answers) -> dict[str, list[str]]:
    conversations = conversations_with_answers(recipe, storage, ingestion, answers)
    return {c.conversation_id: [m.content for m in c.messages] for c in conversations}


def test_every_question_is_asked_once_and_the_files_answers_are_gone(tmp_path, storage, target):
    recipe, ingestion = ingested(tmp_path, storage, [*SINGLE, SINGLE[0][:1] + turns("", "other answer")[1:]])
    made = make_responses(recipe, storage, ingestion)
    assert not made.reused
    assert [len(batch) for batch in target.batches] == [3, 3, 1]
    assert len(set(target.asked)) == 7  # Two rows ask the same.
    assert made.record.num_answers == 8
    answered = texts(recipe, storage, ingestion, made.record)
    assert len(answered) == 8
    assert all(text.startswith("echo ") for _, text in answered.values())


def test_known_answers_are_not_asked_for_again(tmp_path, storage, target):
    recipe, ingestion = ingested(tmp_path, storage, SINGLE)
    first = make_responses(recipe, storage, ingestion).record
    target.batches.clear()
    again = make_responses(recipe, storage, ingestion)
    assert (again.record, again.reused, target.batches) == (first, True, [])


def test_only_new_questions_are_asked_when_rows_are_added(tmp_path, storage, target):
    recipe, ingestion = ingested(tmp_path, storage, SINGLE)
    make_responses(recipe, storage, ingestion)
    target.batches.clear()
    recipe, ingestion = ingested(tmp_path, storage, [*SINGLE, turns("a new question", "x")])
    make_responses(recipe, storage, ingestion)
    [asked] = target.asked
    assert "a new question" in asked


def test_another_limit_is_another_answer_but_another_batch_size_is_not(tmp_path, storage, target):
    recipe, ingestion = ingested(tmp_path, storage, SINGLE)
    first = make_responses(recipe, storage, ingestion).record
    target.batches.clear()
    recipe, _ = ingested(tmp_path, storage, SINGLE, batch_size=5)
    assert make_responses(recipe, storage, ingestion).record.fingerprint == first.fingerprint
    assert target.batches == []
    recipe, _ = ingested(tmp_path, storage, SINGLE, max_new_tokens=25)
    assert make_responses(recipe, storage, ingestion).record.fingerprint != first.fingerprint
    assert len(target.asked) == 7


def test_killed_between_batches_it_goes_on_with_the_rest(tmp_path, storage, target):
    recipe, ingestion = ingested(tmp_path, storage, SINGLE)
    target.dies_at = 2
    with pytest.raises(KeyboardInterrupt):
        make_responses(recipe, storage, ingestion)
    target.dies_at = None
    make_responses(recipe, storage, ingestion)
    assert sorted(target.asked) == sorted(set(target.asked))
    assert [len(batch) for batch in target.batches] == [3, 3, 1]


def test_a_dialogue_goes_on_with_what_the_target_said(tmp_path, storage, target):
    target.answers = {"second": Answer(text="B", complete=True), "first": Answer(text="A", complete=True)}
    recipe, ingestion = ingested(tmp_path, storage, [turns("first", "a", "second", "b", "and thanks")])
    made = make_responses(recipe, storage, ingestion).record
    assert [len(batch) for batch in target.batches] == [1, 1]
    assert "first" in target.asked[1]
    assert "A" in target.asked[1]
    # A last turn that nobody answers is left out.
    assert texts(recipe, storage, ingestion, made) == {"c0": ["first", "A", "second", "B"]}
    assert (made.num_answers, made.num_cut, made.num_empty) == (2, 0, 0)


def test_a_cut_answer_ends_the_dialogue(tmp_path, storage, target):
    target.answers = {"first": Answer(text="A is", complete=False)}
    recipe, ingestion = ingested(tmp_path, storage, [turns("first", "a", "second", "b")])
    made = make_responses(recipe, storage, ingestion).record
    [conversation] = conversations_with_answers(recipe, storage, ingestion, made)
    assert [(m.content, m.complete) for m in conversation.messages] == [("first", True), ("A is", False)]
    assert (made.num_answers, made.num_cut) == (1, 1)
    assert len(target.asked) == 1


@pytest.mark.parametrize("nothing", ["", " \n"])
def test_an_empty_answer_leaves_the_conversation_out(tmp_path, storage, target, nothing):
    target.answers = {"second": Answer(text=nothing, complete=True)}
    recipe, ingestion = ingested(tmp_path, storage, [turns("first", "a", "second", "b"), *SINGLE])
    made = make_responses(recipe, storage, ingestion).record
    assert (made.num_answers, made.num_empty) == (7, 1)
    assert "c0" not in texts(recipe, storage, ingestion, made)


def test_switched_off_the_files_answers_stay(tmp_path, storage, target):
    recipe, ingestion = ingested(tmp_path, storage, SINGLE, enabled=False)
    made = make_responses(recipe, storage, ingestion)
    assert made.record.fingerprint == "source"
    assert texts(recipe, storage, ingestion, made.record)["c3"] == ["question 3", "answer 3"]
    assert target.batches == []


def test_answers_that_were_never_made_are_refused_by_name(tmp_path, storage, target):
    recipe, ingestion = ingested(tmp_path, storage, SINGLE)
    made = make_responses(recipe, storage, ingestion).record
    storage.warehouse.unlink()
    recipe, ingestion = ingested(tmp_path, storage, SINGLE)
    with pytest.raises(Refused, match="7 answers are not in the warehouse"):
        conversations_with_answers(recipe, storage, ingestion, made)


def test_a_real_target_answers_greedily_within_the_limit(tmp_path, storage):
    recipe, ingestion = ingested(tmp_path, storage, SINGLE[:2], max_new_tokens=6)
    made = make_responses(recipe, storage, ingestion).record
    assert made.num_answers + made.num_empty == 2
    assert made.num_cut == 2  # No answer of six tokens is complete.
