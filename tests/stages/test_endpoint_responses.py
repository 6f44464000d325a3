"""Answers by a server: saved as they come, asked for once, taken up again, and left out by reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.contracts.results import AnswerSet
from dflash_pipeline.recipe import Recipe, load_recipe
from dflash_pipeline.stages import endpoint_answers
from dflash_pipeline.stages.answer_cache import open_cache
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.responses import conversations_with_answers, make_responses
from dflash_pipeline.store.layout import Storage
from tests.answering.served import MODEL, Say, Script, Served, serving
from tests.conftest import ROOT, write_recipe
from tests.stages import preflight_cases

FAST = {"retries": 1, "first_pause_seconds": 0.01, "timeout_seconds": 5, "concurrency": 4}
TOKENIZER = AutoTokenizer.from_pretrained(str(ROOT / "examples/target"))


def echo(prompt: str, _: int) -> Say:
    return Say(text=f"echo {len(prompt)}")


def decoded(body: dict[str, Any]) -> str:
    return str(TOKENIZER.decode(body["prompt"]))


class Bench:
    """Seven questions in a file, a storage, and a server."""

    def __init__(self, folder: Path, served: Served) -> None:
        self.folder, self.served = folder, served
        self.storage = Storage(root=folder / "storage")
        self.rows: list[Any] = [turns(f"question {n}", f"answer {n}") for n in range(7)]

    def recipe(self, *, responses: dict[str, Any] | None = None, **endpoint: Any) -> Recipe:
        source = self.folder / "rows.jsonl"
        rows = [{"id": f"c{n}", "messages": row} for n, row in enumerate(self.rows)]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = {"url": self.served.url, "model": MODEL, **FAST, **endpoint}
        return load_recipe(
            write_recipe(
                self.folder / "recipe.yaml",
                data={"sources": [{"path": str(source)}], "max_rows": None},
                responses={"batch_size": 3, "max_new_tokens": 24, "endpoint": settings, **(responses or {})},
            )
        )

    def answered(self, recipe: Recipe) -> tuple[Made[AnswerSet], Ingestion]:
        ingestion = make_conversations(recipe, self.storage).record
        return make_responses(recipe, self.storage, ingestion), ingestion

    def texts(self, recipe: Recipe) -> dict[str, list[str]]:
        made, ingestion = self.answered(recipe)
        found = conversations_with_answers(recipe, self.storage, ingestion, made.record)
        return {c.conversation_id: [m.content for m in c.messages] for c in found}


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


@contextmanager
def benched(folder: Path, script: Script) -> Iterator[Bench]:
    with serving(script, decoded) as served:
        yield Bench(folder, served)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[[Script], Bench]]:
    opened: list[Any] = []

    def make(script: Script) -> Bench:
        context = benched(tmp_path, script)
        opened.append(context)
        return context.__enter__()

    yield make
    for context in opened:
        context.__exit__(None, None, None)


def test_the_prompt_is_the_targets_template_and_the_answer_stands_in_the_conversation(bench):
    one = bench(echo)
    recipe = one.recipe()
    made, _ = one.answered(recipe)
    assert (made.reused, made.record.num_answers, made.record.left_out) == (False, 7, ())
    prompt = "<|im_start|>user\nquestion 3<|im_end|>\n<|im_start|>assistant\n"
    assert prompt in one.served.asked
    assert one.texts(recipe)["c3"] == ["question 3", f"echo {len(prompt)}"]
    assert len(one.served.bodies) == 7  # Read again from the cache, never asked for again.


def test_known_answers_need_no_server(bench, tmp_path):
    one = bench(echo)
    first = one.answered(one.recipe())[0].record
    # Another address, at which nobody listens: it is no part of an answer's identity.
    again = one.answered(one.recipe(url="http://127.0.0.1:9/v1"))[0]
    assert (again.record, again.reused) == (first, True)


@pytest.mark.parametrize(
    ("endpoint", "responses"),
    [
        ({"api": "chat"}, {}),
        ({"model": "other"}, {}),
        ({}, {"max_new_tokens": 25}),
        ({}, {"temperature": 0.5}),
        ({}, {"temperature": 0.5, "seed": 1}),
        ({}, {"temperature": 0.5, "top_p": 0.5}),
        ({}, {"temperature": 0.5, "top_k": 5}),
        ({}, {"endpoint": None}),
    ],
)
def test_settings_of_sampling_and_the_way_of_answering_are_the_answers_identity(tmp_path, endpoint, responses):
    with serving(echo, decoded) as served:
        one = Bench(tmp_path, served)
        names = {
            open_cache(one.recipe(responses=r, **e), one.storage).settings.fingerprint
            for e, r in [({}, {}), ({"concurrency": 9, "retries": 9}, {"batch_size": 9}), (endpoint, responses)]
        }
    assert len(names) == 2


def test_no_more_requests_than_allowed_are_under_way(bench):
    one = bench(lambda prompt, _: Say(seconds=0.03))
    one.rows = [turns(f"question {n}", "a") for n in range(24)]
    one.answered(one.recipe(concurrency=4))
    assert one.served.most_at_once == 4


def test_answers_out_of_order_find_their_question(bench):
    one = bench(
        lambda prompt, _: Say(text=f"to {prompt.split('question ')[1][0]}", seconds=0.06 if "0" in prompt else 0)
    )
    assert one.texts(one.recipe()) == {f"c{n}": [f"question {n}", f"to {n}"] for n in range(7)}


def test_a_dialogue_goes_on_with_what_the_server_said(bench):
    one = bench(lambda prompt, _: Say(text="B" if "second" in prompt else "A"))
    one.rows = [turns("first", "a", "second", "b")]
    assert one.texts(one.recipe()) == {"c0": ["first", "A", "second", "B"]}
    assert one.served.asked[1].count("A<|im_end|>") == 1


def by_question(**says: Say) -> Script:
    """Replies by the number of the question, as `q3=…`."""
    return lambda prompt, _: says.get(f"q{prompt.split('question ')[1][0]}", Say())


def test_what_is_left_out_is_counted_by_reason_and_truncated_answers_stay(bench):
    one = bench(
        by_question(
            q1=Say(ended="content_filter"),
            q2=Say(text="  "),
            q3=Say(status=400, raw=b"no"),
            q4=Say(text="so far", ended="length"),
            q5=Say(text="<think>\nso far", ended="length"),
        )
    )
    recipe = one.recipe(max_failed=0.5)
    record = one.answered(recipe)[0].record
    assert dict(record.left_out) == {"content_filter": 1, "empty": 1, "rejected": 1, "cut_in_thought": 1}
    assert (record.num_answers, record.num_cut, record.num_empty) == (3, 1, 1)
    assert sorted(one.texts(recipe)) == ["c0", "c4", "c6"]


def test_what_the_target_said_is_settled_and_a_failure_is_asked_again(bench):
    one = bench(
        lambda prompt, times: (
            Say(ended="content_filter")
            if "question 1" in prompt
            else Say(status=400, raw=b"not yet")
            if "question 2" in prompt and times == 1
            else Say()
        )
    )
    recipe = one.recipe(max_failed=0.5)
    before = one.answered(recipe)[0].record
    made, ingestion = one.answered(recipe)
    assert one.served.times.total() == 8
    assert (before.num_answers, made.record.num_answers) == (5, 6)
    # Other answers, another name: what was made of the first is not taken for the second.
    assert before.fingerprint != made.record.fingerprint
    with pytest.raises(Refused, match="others came since"):
        conversations_with_answers(recipe, one.storage, ingestion, before)


def test_too_many_failures_fail_the_stage_and_keep_what_came(bench):
    one = bench(by_question(q1=Say(status=500, raw=b"out of memory"), q2=Say(raw=b"garbage")))
    with pytest.raises(Failed) as failed:
        one.answered(one.recipe())
    assert "2 of 7 prompts have no answer" in failed.value.what
    assert "HTTP 500: out of memory" in failed.value.what
    assert "no completion: garbage" in failed.value.what
    assert one.answered(one.recipe(max_failed=2 / 7))[0].record.num_answers == 5
    asked = len(one.served.bodies)
    one.served.script = echo
    assert one.answered(one.recipe())[0].record.num_answers == 7
    assert len(one.served.bodies) == asked + 2


def test_a_server_that_goes_away_is_given_up_before_every_prompt_was_tried(bench, monkeypatch):
    monkeypatch.setattr(endpoint_answers, "LEAST_IN_A_ROW", 2)
    one = bench(lambda prompt, _: Say() if "question 0" in prompt else Say(cut=True))
    one.rows = [turns(f"question {n}", "a") for n in range(30)]
    with pytest.raises(Failed, match=r"2 prompts in a row got no reply in 2 tries each; last, the connection broke"):
        one.answered(one.recipe(concurrency=1, max_failed=1))
    assert len(one.served.bodies) < 10
    assert len(one.answered(one.recipe(concurrency=30, max_failed=1))[0].record.left_out) == 1


def test_a_server_that_is_down_fails_quickly_and_says_where(bench):
    one = bench(echo)
    began = time.monotonic()
    with pytest.raises(Failed) as failed:
        one.answered(one.recipe(url="http://127.0.0.1:9/v1", retries=50))
    assert time.monotonic() - began < 5
    assert failed.value.where == "http://127.0.0.1:9/v1"


def test_a_conversation_with_tools_is_not_left_to_the_servers_template(bench):
    one = bench(echo)
    one.rows = [[*turns("question 1", "a"), {"role": "tool", "content": "42"}, *turns("and now?", "b")]]
    with pytest.raises(Refused, match="1 prompts of conversations with tools"):
        one.answered(one.recipe(api="chat"))
    assert one.served.bodies == []


CHILD = """
import sys
from pathlib import Path
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.store.layout import Storage
recipe, storage = load_recipe(Path(sys.argv[1])), Storage(root=Path(sys.argv[2]))
make_responses(recipe, storage, make_conversations(recipe, storage).record)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_it_goes_on_with_what_is_missing(bench, number, tmp_path):
    """With SIGKILL what came since the last save is lost; after an interrupt nothing is, and nobody is waited for."""
    one = bench(lambda prompt, times: Say(seconds=30 if "question 1<" in prompt and times == 1 else 0))
    one.rows = [turns(f"question {n}", "a") for n in range(10)]
    recipe = one.recipe(concurrency=2)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "recipe.yaml"), str(one.storage.root)]
    child = subprocess.Popen(command, env=os.environ, cwd=ROOT, stderr=subprocess.DEVNULL)
    until(lambda: len(one.served.bodies) == 10)
    time.sleep(0.3)
    child.send_signal(number)
    assert child.wait(timeout=20) != 0
    before = len(one.served.bodies)
    assert one.answered(recipe)[0].record.num_answers == 10
    again = len(one.served.bodies) - before
    assert again == 1 if number == signal.SIGINT else 1 <= again < 4


def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def test_a_key_that_is_not_there_is_found_before_work_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("TARGET_KEY", raising=False)
    endpoint = {"url": "http://127.0.0.1:9/v1", "model": MODEL, "api_key_env": "TARGET_KEY"}
    fault = preflight_cases.only(preflight_cases.faults(tmp_path, responses={"endpoint": endpoint}))
    assert (fault.where, "TARGET_KEY" in fault.what) == ("responses.endpoint.api_key_env", True)
    assert preflight_cases.faults(tmp_path, responses={"endpoint": endpoint, "enabled": False}) == ()
    monkeypatch.setenv("TARGET_KEY", "k")
    assert preflight_cases.faults(tmp_path, responses={"endpoint": endpoint}) == ()


def test_the_key_is_in_nothing_that_is_left_behind(bench, monkeypatch, caplog, tmp_path):
    secret = "sk-do-not-tell"
    monkeypatch.setenv("TARGET_KEY", secret)
    one = bench(by_question(q1=Say(status=500, raw=f"bad {secret}".encode())))
    told: list[str] = []
    recipe = one.recipe(api_key_env="TARGET_KEY", max_failed=1)
    with caplog.at_level("DEBUG"):
        ingestion = make_conversations(recipe, one.storage).record
        make_responses(recipe, one.storage, ingestion, tell=told.append)
        with pytest.raises(Failed) as failed:
            make_responses(one.recipe(api_key_env="TARGET_KEY"), one.storage, ingestion)
    assert one.served.headers[0]["Authorization"] == f"Bearer {secret}"
    assert "bad (key)" in str(failed.value)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 2
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert secret not in f"{failed.value} {caplog.text} {told}"
