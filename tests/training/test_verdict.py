"""The verdict: which part of a step's time is the limit, by numbers and by slowing each part of a real training."""

import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.store.records import save_record
from dflash_pipeline.training.collate import Collator
from dflash_pipeline.training.verdict import PARTS, Verdict, verdict
from tests.tracking.training_records import step
from tests.training.gloo_slow import slowed
from tests.training.toy_run import train, write_toy

ROOT = Path(__file__).parents[2]

NOTHING = replace(
    step(1),
    seconds=1.0,
    data_wait_seconds=0.0,
    target_seconds=0.0,
    drafter_seconds=0.0,
    backward_seconds=0.0,
    communication_seconds=0.0,
    optimizer_seconds=0.0,
    rank_busy_seconds=(0.5, 0.5),
)


@pytest.mark.parametrize(
    ("limit", "share", "spent"),
    [
        ("data", 0.6, {"data_wait_seconds": 0.6}),
        ("target forward", 0.5, {"target_seconds": 0.5, "drafter_seconds": 0.2, "backward_seconds": 0.2}),
        ("drafter", 0.5, {"target_seconds": 0.3, "drafter_seconds": 0.2, "backward_seconds": 0.3}),
        ("communication", 0.7, {"communication_seconds": 0.7}),
        ("imbalance", 0.45, {"communication_seconds": 0.5, "rank_busy_seconds": (0.95, 0.05)}),
        ("imbalance", 0.25, {"communication_seconds": 0.4, "rank_busy_seconds": (0.5, 0.0), "target_seconds": 0.5}),
        ("drafter", 0.5, {"data_wait_seconds": 0.24, "drafter_seconds": 0.5}),
        ("balanced", 0.39, {"target_seconds": 0.39, "drafter_seconds": 0.2, "backward_seconds": 0.15}),
    ],
)
def test_the_largest_part_is_the_limit(limit, share, spent):
    found = verdict([replace(NOTHING, **spent)] * 3)
    assert found.limit == limit
    assert found.share == pytest.approx(share)


def test_the_sentence_names_the_limit_and_what_would_help():
    found = verdict([replace(NOTHING, data_wait_seconds=0.31, target_seconds=0.5, communication_seconds=0.1)] * 2)
    assert found.sentence == (
        "waiting for data limits throughput (data is 31% of the time); "
        "features that are kept on disk would save 50%; a perfect loader would save 31%"
    )


def test_what_is_done_once_is_no_limit():
    first = replace(NOTHING, seconds=100.0, drafter_seconds=100.0)
    again = [replace(first, attempt=2), replace(NOTHING, attempt=2, data_wait_seconds=1.0)]
    assert verdict([first, *[replace(NOTHING, data_wait_seconds=1.0)] * 2, *again]).limit == "data"
    assert verdict([first]).limit == "drafter"


def test_imbalance_is_no_more_than_the_time_in_collectives():
    found = verdict([replace(NOTHING, rank_busy_seconds=(0.9, 0.1), communication_seconds=0.1)])
    assert dict(found.shares) == pytest.approx(dict.fromkeys(PARTS, 0.0) | {"imbalance": 0.1})


def test_steps_that_do_not_say_where_their_time_went():
    assert verdict([]) is None
    assert verdict([replace(NOTHING, rank_busy_seconds=())]) is None
    assert verdict([replace(NOTHING, rank_busy_seconds=()), replace(NOTHING, data_wait_seconds=1.0)]).limit == "data"


seconds = st.floats(0, 10)
TIMES = (
    "data_wait_seconds",
    "target_seconds",
    "drafter_seconds",
    "backward_seconds",
    "communication_seconds",
    "optimizer_seconds",
)


@given(
    st.lists(
        st.builds(
            lambda parts, busy: replace(
                NOTHING, **parts, rank_busy_seconds=tuple(busy), seconds=sum(parts.values()) + 0.1
            ),
            st.fixed_dictionaries(dict.fromkeys(TIMES, seconds)),
            st.lists(seconds, min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=5,
    )
)
@example([replace(NOTHING, seconds=0.1, rank_busy_seconds=(5.81533578846375,) * 3)])  # In floats, their mean is larger.
def test_shares_are_of_the_whole_time(steps):
    found = verdict([steps[0], *steps])  # The first is left out.
    assert all(0 <= share <= 1 for _, share in found.shares)
    spent = sum(step.seconds - 0.1 for step in steps)
    assert sum(share for _, share in found.shares) == pytest.approx(spent / sum(step.seconds for step in steps))


def test_a_verdict_has_every_part():
    with pytest.raises(ContractBroken):
        Verdict(limit="data", share=1.0, shares=(("data", 1.0),), sentence="")
    with pytest.raises(ContractBroken):
        Verdict(limit="data", share=math.nan, shares=tuple((part, 0.0) for part in PARTS), sentence="")


# What is slowed sleeps ten times as long as the rest of a step takes: no busy machine turns that round.
SPEC = BatchingSpec(strategy="shuffle", token_budget=40, slots_per_step=2, boundaries=(40,), seed=3)


@pytest.fixture
def one_thread():
    """Threads that wait for each other on a busy machine can take ten times as long as the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy"), lengths=[12, 15, 20, 30] * 4, spec=SPEC, epochs=1)


@pytest.mark.parametrize(
    ("limit", "owner", "name"),
    [("data", Collator, "__call__"), ("target forward", FrozenTarget, "features"), ("drafter", Drafter, "forward")],
)
@pytest.mark.usefixtures("one_thread")
def test_a_slow_part_of_a_real_training_is_the_limit(limit, owner, name, toy, tmp_path):
    put_back = slowed(owner, name)
    try:
        recorder = train(toy, run_dir=tmp_path).recorder
    finally:
        put_back()
    assert verdict(recorder.steps).limit == limit


def test_slow_ranks_and_slow_exchange_are_told_apart(toy, tmp_path):
    save_record(tmp_path / "launch.json", replace(toy, run_dir=str(tmp_path / "run")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.gloo_slow", str(tmp_path / "launch.json"), str(tmp_path / "out")]
    ranks = [subprocess.Popen(command, cwd=ROOT, env={**os.environ, **group, "RANK": str(rank)}) for rank in range(2)]
    assert [process.wait(timeout=250) for process in ranks] == [0, 0]
    assert json.loads((tmp_path / "out").read_text()) == {
        "communication": ["communication"],
        "imbalance": ["imbalance"],
    }
