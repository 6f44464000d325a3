"""One prompt against a real server: what every kind of reply means, what is tried again, and what is not."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.answering.asking import Asked, Asker
from dflash_pipeline.answering.requests import Prompt, Sampling, prompt_seed
from dflash_pipeline.answering.settings import Patience, ServerSettings, key_from_environment
from dflash_pipeline.contracts.errors import ContractBroken, Failed, Refused
from dflash_pipeline.contracts.results import Reply
from tests.answering.served import MODEL, Say, Script, Served, serving

PATIENCE = Patience(timeout_seconds=5, retries=2, first_pause_seconds=0.01, longest_pause_seconds=0.05)
PROMPT = Prompt(text="p", token_ids=(5, 6, 7), messages=({"role": "user", "content": "p"},))
GREEDY = Sampling(max_new_tokens=9)
KEY = "sk-very-secret"


def asker(served: Served, **changes: object) -> Asker:
    settings = ServerSettings(url=served.url, model=MODEL, api="completions", patience=PATIENCE, concurrency=2)
    return Asker(replace(settings, **changes), GREEDY, thinking=None, stop=threading.Event())


def asked(script: Script, **changes: object) -> tuple[Asked, Served]:
    with serving(script) as served:
        return asker(served, **changes).ask(PROMPT), served


def after(*says: Say) -> Script:
    """These in turn, and the last one from then on."""
    return lambda _, times: says[min(times, len(says)) - 1]


@pytest.mark.parametrize(
    ("say", "reply"),
    [
        (Say(text=" yes"), Reply(text=" yes", complete=True)),
        (Say(text="so fa", ended="length"), Reply(text="so fa", complete=False)),
        (Say(text="so f\ufffd", ended="length"), Reply(text="so f", complete=False)),
        (Say(text=" \n"), Reply(reason="empty")),
        (Say(text="half", ended="content_filter"), Reply(reason="content_filter")),
        (Say(status=400, raw=b'{"error": "too long"}'), Reply(reason="rejected")),
        (Say(status=422, raw=b""), Reply(reason="rejected")),
    ],
)
def test_what_settles_a_prompt_is_asked_for_once(say, reply):
    found, served = asked(after(say))
    assert (found.reply, found.num_tries, len(served.bodies)) == (reply, 1, 1)


@pytest.mark.parametrize(
    "say",
    [
        Say(status=500),
        Say(status=503, raw=b"<html>busy</html>"),
        Say(status=429),
        Say(status=408),
        Say(cut=True),
        Say(raw=b"no JSON"),
        Say(raw=b"[" * 100_000),
        Say(raw=b'{"choices": []}'),
        Say(raw=b'{"choices": [{"finish_reason": "stop", "text": 5}]}'),
        Say(raw=b'{"choices": [{"finish_reason": "stop", "text": "\\ud800"}]}'),
        Say(ended="abort"),
        Say(ended=None),
    ],
)
def test_what_may_pass_is_tried_again(say):
    found, served = asked(after(say, say, Say(text="at last")))
    assert (found.reply, found.num_tries) == (Reply(text="at last", complete=True), 3)
    found, served = asked(after(say))
    assert found.reply.reason in ("no_reply", "malformed")
    assert found.num_tries == len(served.bodies) == PATIENCE.retries + 1
    assert found.said


def test_a_reason_tells_a_broken_connection_from_words_that_are_no_answer():
    assert asked(after(Say(cut=True)))[0].reply.reason == "no_reply"
    assert asked(after(Say(raw=b"no JSON")))[0].reply.reason == "malformed"
    assert asked(after(Say(raw=b"no JSON")))[0].said == "no completion: no JSON"


@pytest.mark.parametrize("say", [Say(seconds=2), Say(trickle=0.02)])
def test_a_server_that_stalls_or_trickles_is_not_waited_for(say):
    patience = replace(PATIENCE, timeout_seconds=0.2, retries=1)
    began = time.monotonic()
    found, served = asked(after(say), patience=patience)
    assert (found.reply.reason, found.said) == ("no_reply", "no whole reply within 0.2 s")
    assert time.monotonic() - began < 1.9
    assert len(served.bodies) == 2


def test_a_reply_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr("dflash_pipeline.answering.exchange.MOST_BYTES", 1000)
    found, _ = asked(after(Say(text="x" * 2000)), patience=replace(PATIENCE, retries=0))
    assert found.said == "a reply of more than 1,000 bytes"


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_server_that_says_when_is_asked_then(form):
    value = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
    busy = Say(status=429, headers={"Retry-After": value})
    began = time.monotonic()
    found, _ = asked(after(busy, Say()), patience=replace(PATIENCE, longest_pause_seconds=0.4))
    assert found.reply.text == "fine"
    assert time.monotonic() - began >= 0.4  # Bounded by our own longest pause.


@given(
    tries=st.integers(1, 2000),
    asked_for=st.none() | st.floats(0, 1e6),
    seed=st.integers(0, 99),
    first=st.floats(1e-3, 60),
)
def test_pauses_grow_and_stay_bounded(tries, asked_for, seed, first):
    patience = Patience(timeout_seconds=1, retries=1, first_pause_seconds=first, longest_pause_seconds=60)
    pause = patience.pause(tries, asked_for=asked_for, chance=random.Random(seed))
    doubled = min(first * 2.0 ** min(tries - 1, 60), 60)
    assert doubled / 2 <= pause <= 60
    assert pause >= min(asked_for or 0, 60)
    assert asked_for is not None or pause <= doubled


def test_chance_keeps_askers_apart():
    patience = replace(PATIENCE, first_pause_seconds=1, longest_pause_seconds=60)
    chance = random.Random(0)
    assert len({patience.pause(3, asked_for=None, chance=chance) for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("say", "fix"),
    [
        (Say(status=401, raw=f"no such key {KEY}".encode()), "api_key_env"),
        (Say(status=403), "api_key_env"),
        (Say(status=404), "ends in /v1"),
        (Say(status=307, headers={"Location": "/elsewhere"}), "redirects are not followed"),
    ],
)
def test_what_holds_for_every_prompt_ends_the_asking(say, fix):
    with serving(after(say)) as served:
        with pytest.raises(Refused) as refused:
            asker(served, key=KEY).ask(PROMPT)
        assert len(served.bodies) == 1
    assert fix in refused.value.fix
    assert KEY not in str(refused.value)


def test_the_key_goes_into_one_header_and_nowhere_else():
    with serving(after(Say(status=500, raw=f"Bearer {KEY} is over its limit".encode()))) as served:
        one = asker(served, key=KEY)
        found = one.ask(PROMPT)
        assert served.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert KEY not in str(served.bodies)
    assert "(key) is over its limit" in found.said
    assert KEY not in repr((found, one._server))
    with serving(after(Say())) as served:
        asker(served).ask(PROMPT)
        assert "Authorization" not in served.headers[0]


@pytest.mark.parametrize("value", [None, "", " ", "två", "a\nb"])
def test_a_variable_without_a_usable_key_is_refused_by_its_name(monkeypatch, value):
    monkeypatch.delenv("OUR_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("OUR_KEY", value)
    with pytest.raises(Refused, match="OUR_KEY") as refused:
        key_from_environment("OUR_KEY")
    assert not value or not value.strip() or value not in str(refused.value)
    monkeypatch.setenv("OUR_KEY", f"{KEY}\n")
    assert key_from_environment("OUR_KEY") == KEY
    assert key_from_environment(None) is None


def test_every_setting_of_sampling_is_said():
    """What is left open, a server fills in from the target's generation_config.json."""
    _, served = asked(after(Say()))
    assert served.paths == ["/v1/completions"]
    assert served.bodies == [
        {
            "model": MODEL,
            "prompt": [5, 6, 7],
            "max_tokens": 9,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "n": 1,
            "stream": False,
        }
    ]


def test_what_is_drawn_hangs_on_the_seed_and_the_prompt():
    sampling = Sampling(max_new_tokens=9, temperature=0.7, top_p=0.9, top_k=20, seed=3)
    with serving(after(Say())) as served:
        settings = ServerSettings(url=served.url, model=MODEL, api="completions", patience=PATIENCE, concurrency=2)
        one = Asker(settings, sampling, thinking=None, stop=threading.Event())
        one.ask(PROMPT)
        one.ask(replace(PROMPT, text="q"))
        first, second = served.bodies
    assert (first["temperature"], first["top_p"], first["top_k"]) == (0.7, 0.9, 20)
    assert first["seed"] == prompt_seed(3, "p") != second["seed"]
    assert 0 <= first["seed"] < 2**31


def test_another_tokenizer_shows_in_the_count_of_tokens():
    found, _ = asked(after(Say(prompt_tokens=3)))
    assert found.reply.text == "fine"
    with serving(after(Say(prompt_tokens=4))) as served, pytest.raises(Refused, match="4 tokens in a prompt of 3"):
        asker(served).ask(PROMPT)


def test_a_server_that_overruns_the_limit_is_told_of_once(caplog):
    with serving(after(Say(answer_tokens=9), Say(answer_tokens=10), Say(answer_tokens=11))) as served:
        one = asker(served)
        assert [one.ask(PROMPT).reply.text for _ in range(3)] == ["fine"] * 3
    assert [record.message for record in caplog.records] == [
        "the server does not keep to max_tokens: 10 tokens where 9 were asked for"
    ]


def test_a_model_that_is_not_served_is_refused_with_those_that_are():
    with serving(after(Say())) as served:
        asker(served).check_model()
        assert served.paths == ["/v1/models"]
        with pytest.raises(Refused, match=r"it serves 'the-target', not 'other'"):
            asker(served, model="other").check_model()
        served.models = Say(raw=b"[]")
        with pytest.raises(Refused, match="no model that it lists"):
            asker(served).check_model()


def test_a_server_that_is_not_there_or_not_ready_fails_at_once():
    with serving(after(Say())) as served:
        gone = asker(served)
        served.models = Say(status=503, raw=b"loading")
        with pytest.raises(Failed, match="HTTP 503: loading"):
            asker(served).check_model()
    began = time.monotonic()
    with pytest.raises(Failed, match="nobody answers at this address") as failed:
        gone.check_model()
    assert time.monotonic() - began < 1
    assert failed.value.where == served.url
    assert "start the server" in failed.value.fix


CHAT = {"api": "chat"}


@pytest.mark.parametrize(
    ("message", "ended", "reply"),
    [
        ({"content": "yes"}, "stop", Reply(text="yes", complete=True)),
        ({"content": None, "refusal": "I won't"}, "stop", Reply(reason="refused")),
        (
            {"content": "\n4", "reasoning_content": "\ntwo and two\n"},
            "stop",
            Reply(text="<think>\ntwo and two\n</think>\n\n4", complete=True),
        ),
        ({"content": "4", "reasoning": "2+2"}, "stop", Reply(text="<think>\n2+2\n</think>\n\n4", complete=True)),
        ({"content": None, "reasoning_content": "two and"}, "length", Reply(text="<think>\ntwo and", complete=False)),
        ({"content": "", "reasoning_content": None}, "stop", Reply(reason="empty")),
    ],
)
def test_a_chat_reply_is_put_together_as_the_target_wrote_it(message, ended, reply):
    found, served = asked(after(Say(message=message, ended=ended)), **CHAT)
    assert (found.reply, served.paths) == (reply, ["/v1/chat/completions"])
    assert served.bodies[0]["messages"] == [{"role": "user", "content": "p"}]
    assert "chat_template_kwargs" not in served.bodies[0]


@pytest.mark.parametrize("message", [{}, {"content": None, "tool_calls": [{}]}])
def test_a_chat_reply_without_text_is_no_answer(message):
    found, _ = asked(after(Say(message={"role": "assistant", **message})), **CHAT)
    assert found.reply.reason == "malformed"


def test_a_server_that_renders_is_told_the_mode(caplog):
    with serving(after(Say(prompt_tokens=99))) as served:
        settings = ServerSettings(url=served.url, model=MODEL, api="chat", patience=PATIENCE, concurrency=2)
        one = Asker(settings, GREEDY, thinking=False, stop=threading.Event())
        assert one.ask(PROMPT).reply.text == "fine"
        one.ask(PROMPT)
        assert served.bodies[0]["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    [warning] = caplog.messages
    assert "99 tokens in a prompt of 3" in warning


def test_stopping_ends_a_pause():
    stop = threading.Event()
    with serving(after(Say(status=500))) as served:
        patience = replace(PATIENCE, first_pause_seconds=30, longest_pause_seconds=60)
        settings = ServerSettings(url=served.url, model=MODEL, api="completions", patience=patience, concurrency=2)
        threading.Timer(0.1, stop.set).start()
        found = Asker(settings, GREEDY, thinking=None, stop=stop).ask(PROMPT)
        assert (found.reply.reason, len(served.bodies)) == ("no_reply", 1)


def test_a_reply_is_an_answer_or_a_reason():
    with pytest.raises(ContractBroken, match="reason 'empty' with 4 characters"):
        Reply(text="text", reason="empty")
    with pytest.raises(ContractBroken, match="reason 'bored'"):
        Reply(reason="bored")  # type: ignore[arg-type]
