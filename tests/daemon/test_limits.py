"""What ends a training from outside, with the real daemon: a limit, a person, and the death of each process above it.

In every case no rank goes on, a whole checkpoint is there, the page and MLflow say what happened, and the next run
continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_pipeline.assets.automation import TRAINS, limit_tags
from dflash_pipeline.recipe.schedule import Schedule
from dflash_pipeline.store.layout import Storage
from tests.conftest import Chain, write_recipe
from tests.daemon.limits_server import PATIENCE, Served, folders, served, steps_done
from tests.launch.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG = {"num_buckets": 3, "token_budget": 448, "slots_per_step": 2, "epochs": 64, "seed": 3}
"""Some 400 steps: half a minute on a quiet machine."""
TERMINATED_SECONDS = 30.0
PORTS = 24200


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Everything up to a long plan, so that a run has only to train."""
    folder = tmp_path_factory.mktemp("limits")
    recipe_file = write_recipe(folder / "long.yaml", batching=LONG)
    chain = Chain(recipe_file=recipe_file, storage=Storage(root=folder / "storage"), facts={})
    chain.answer("run", "--plan-only")
    return chain


@pytest.fixture(scope="module")
def server(planned: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    chain = planned.copy(folder / "storage")
    with served(chain.recipe_file, chain.storage, folder, ports=PORTS) as found:
        yield found


def test_a_run_whose_process_is_killed_is_tried_once_more_and_goes_on_at_its_checkpoint(server: Served):
    before = folders(server.storage)
    killed = server.train(0.004)
    run_dir = server.under_way(before)
    page = server.record(run_dir).mlflow_run_id
    server.worker().kill()
    assert until(lambda: server.status(killed) == "FAILURE", seconds=30)
    assert until(lambda: not server.ranks(), seconds=TERMINATED_SECONDS)
    saved = server.checkpoint(run_dir)
    assert saved == steps_done(run_dir)

    assert until(lambda: server.retries(killed), seconds=PATIENCE)
    [again] = server.retries(killed)
    # So that it waits its turn as any other, and the sensor counts it.
    assert TRAINS.items() <= server.page.run(again)["tags"].items()
    assert server.page.ended(again, seconds=PATIENCE) == "SUCCESS"
    record = server.record(run_dir)
    assert [(a.status, a.first_step) for a in record.attempts] == [("stopped", 0), ("finished", saved)]
    assert record.mlflow_run_id == page
    assert server.mlflow_status(run_dir) == "FINISHED"
    assert server.retries(killed) == [again]


def test_a_run_beyond_its_limit_is_stopped_with_a_checkpoint_and_not_tried_again_by_itself(server: Served):
    before = folders(server.storage)
    limited = server.train(0.005)
    run_dir = server.under_way(before)
    # Set only now: how long a run takes to come here is the machine's business.
    server.tag(limited, limit_tags(Schedule(max_hours=0.001)))
    assert until(lambda: server.status(limited) == "FAILURE", seconds=60)
    assert until(lambda: not server.ranks(), seconds=TERMINATED_SECONDS)
    assert server.checkpoint(run_dir) == steps_done(run_dir)
    assert [a.status for a in server.record(run_dir).attempts] == ["stopped"]
    assert server.mlflow_status(run_dir) == "KILLED"
    assert until(lambda: server.held() == 0, seconds=30)
    assert server.retries(limited) == []


def test_a_person_ends_a_waiting_run_and_one_whose_ranks_listen_to_nobody(server: Served):
    before = folders(server.storage)
    training = server.train(0.006)
    run_dir = server.under_way(before)
    waiting = server.train(0.007)
    # A process that is stopped answers no signal but SIGKILL, as one that hangs in a driver.
    for rank in [process for process in server.ranks() if process.pid != server.agent().pid]:
        rank.suspend()
    assert until(lambda: server.status(waiting) == "QUEUED", seconds=30)
    server.page.terminate(waiting)
    assert server.status(waiting) == "CANCELED"
    server.page.terminate(training)
    assert until(lambda: not server.ranks(), seconds=TERMINATED_SECONDS)
    assert until(lambda: server.status(training) == "CANCELED", seconds=30)
    assert server.mlflow_status(run_dir) == "KILLED"
    assert until(lambda: server.held() == 0, seconds=30)
    assert folders(server.storage) - before == {run_dir}
    assert server.status(waiting) == "CANCELED"


@pytest.mark.parametrize("dies", ["the server that started the run", "everything but the ranks"])
def test_no_rank_outlives_its_servers_and_the_page_is_right_when_they_are_back(
    dies: str, planned: Chain, tmp_path: Path
):
    chain = planned.copy(tmp_path / "storage")
    before = folders(chain.storage)
    with served(chain.recipe_file, chain.storage, tmp_path, ports=PORTS + 100) as server:
        cut_off = server.train(0.008)
        run_dir = server.under_way(before)
        if dies == "everything but the ranks":
            server.kill_servers()
        else:
            server.server("api", "grpc").kill()
            assert until(lambda: server.status(cut_off) == "FAILURE", seconds=60)
        assert until(lambda: not server.ranks(), seconds=60)
    saved = server.checkpoint(run_dir)
    assert saved == steps_done(run_dir)
    assert server.mlflow_status(run_dir) == "KILLED"
    with served(chain.recipe_file, chain.storage, tmp_path, ports=PORTS + 200) as back:
        assert back.status(cut_off) == "FAILURE"
        # What was cut off from outside goes on by itself; what ended with an error of its own waits for a person.
        if dies == "everything but the ranks":
            assert until(lambda: back.retries(cut_off), seconds=60)
        else:
            back.train(0.008)
        assert until(lambda: len(back.record(run_dir).attempts) == 2, seconds=PATIENCE)
        assert back.record(run_dir).attempts[1].first_step == saved
        assert len(back.page.runs()) == 3, "the planning, the one cut off, and one more"
