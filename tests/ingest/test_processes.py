"""Several processes give what one gives; one that dies is named; none outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.contracts.sample import DroppedSample, Sample
from dflash_pipeline.ingest import processes as module
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.processes import in_chunks, tokenise_chunks
from dflash_pipeline.ingest.tokenise import TokenRule, tokeniser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    return tokeniser(ChatRenderer(ROOT / "examples" / "target"), TokenRule(max_length=60, overlong="drop"))


def rows(number, text="word"):
    return [
        Conversation(
            conversation_id=f"c{i}",
            messages=(
                Message(role="user", content=f"{i} {text} <|im_end|>"),
                Message(role="assistant", content=f"{text} é " * (i % 17 + 1)),
            ),
            split="train",
            file="f",
            line=i + 1,
        )
        for i in range(number)
    ]


def told(outcomes):
    return [
        (o.conversation_id, o.reason if isinstance(o, DroppedSample) else (o.input_ids.tolist(), o.spans, o.num_cut))
        for o in outcomes
    ]


def test_the_outcomes_are_the_same_whatever_the_number_of_processes(made, monkeypatch):
    conversations = rows(100)
    alone = made(conversations)
    assert {type(outcome) for outcome in alone} == {Sample, DroppedSample}
    monkeypatch.setattr(module, "CONVERSATIONS_AT_ONCE", 7)
    chunks = list(in_chunks(conversations))
    assert len(chunks) == 15
    here = [o for chunk in tokenise_chunks(chunks, made, processes=1) for o in chunk]
    monkeypatch.setattr(module, "CHARACTERS_HERE", 2_000)
    elsewhere = [o for chunk in tokenise_chunks([[], *chunks, []], made, processes=3) for o in chunk]
    assert told(here) == told(elsewhere) == told(alone)


def test_for_two_cores_no_other_process_is_started(made, monkeypatch):
    monkeypatch.setattr(module, "CHARACTERS_HERE", 0)
    monkeypatch.setattr(module, "_elsewhere", lambda *_: iter(["elsewhere"]))
    chunks = [rows(3), rows(2)]
    assert [len(outcomes) for outcomes in tokenise_chunks(chunks, made, processes=2)] == [3, 2]
    assert list(tokenise_chunks(chunks, made, processes=3)) == ["elsewhere"]


def test_chunks_are_bounded_in_number_and_text():
    assert [len(chunk) for chunk in in_chunks(rows(600))] == [256, 256, 88]
    assert [len(chunk) for chunk in in_chunks(rows(3, "x" * module.CHARACTERS_AT_ONCE))] == [1, 1, 1]
    assert list(in_chunks([])) == []


def test_a_process_that_is_killed_is_a_failure_with_a_sentence(made, monkeypatch):
    monkeypatch.setattr(module, "_work", _die)
    with pytest.raises(Failed, match="killed"):
        list(module._elsewhere([rows(1)], made, 1))


def _die(chunk):
    os.kill(os.getpid(), signal.SIGKILL)


ORPHANS = """
import os, signal, sys, time
from pathlib import Path
from dflash_pipeline.ingest import processes
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.tokenise import TokenRule, tokeniser

if __name__ == "__main__":
    made = tokeniser(ChatRenderer(Path(sys.argv[1])), TokenRule(max_length=60))
    chunks = processes._elsewhere(iter([[]] * 100), made, 1)
    next(chunks)
    print(*(child.pid for child in __import__("multiprocessing").active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_process_outlives_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(ORPHANS, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script), str(ROOT / "examples" / "target")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    [child] = ended.stdout.split()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)
