"""`dflash run` beside a training waits before its run begins, where Ctrl-C is answered."""

from __future__ import annotations

import dagster as dg
import pytest

from dflash_pipeline.assets import node_wait
from dflash_pipeline.assets.instance import open_instance
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.store.layout import Storage


@pytest.fixture
def instance(tmp_path):
    with open_instance(Storage(root=tmp_path)) as opened:
        yield opened


@pytest.fixture
def holder(instance):
    run = instance.create_run_for_job(dg.GraphDefinition(name="other", node_defs=[_nothing]).to_job())
    assert instance.event_log_storage.initialize_concurrency_limit_to_default(NODE)
    assert instance.event_log_storage.claim_concurrency_slot(NODE, run.run_id, "trained_drafter").is_claimed
    return run


@dg.op(name="nothing")
def _nothing() -> None: ...


def test_nobody_is_waited_for(instance):
    node_wait.wait_for_the_node(instance, tell=pytest.fail)


def test_one_that_trains_is_waited_for_until_it_is_over(instance, holder, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(node_wait.time, "sleep", lambda _seconds: instance.report_run_failed(holder, "it is over"))
    node_wait.wait_for_the_node(instance, tell=said.append)
    assert said == [f"run {holder.run_id[:8]} trains; this one begins when it has ended (Ctrl-C: not at all)"]


def test_an_interrupt_ends_the_waiting(instance, holder, monkeypatch):
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(node_wait.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        node_wait.wait_for_the_node(instance, tell=lambda _line: None)
