"""`dflash ui` as a program: on this machine only, on free ports, and gone without a trace."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.browser.conftest import UI, WANTED_PORT, Pages, start_ui
from tests.conftest import Chain, write_recipe
from tests.launch.processes import until


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    return {
        (connection.laddr.ip, connection.laddr.port)
        for member in [process, *process.children(recursive=True)]
        for connection in member.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def port_of(address: str) -> int:
    return int(address.split("/")[2].split(":")[1])


def test_both_listen_to_this_machine_only(pages: Pages):
    found = listening(psutil.Process(pages.process.pid))
    assert found >= {("127.0.0.1", port_of(pages.dagster)), ("127.0.0.1", port_of(pages.mlflow))}
    assert {host for host, _ in found} == {"127.0.0.1"}


def test_a_busy_port_is_replaced(pages: Pages):
    assert sorted((port_of(pages.dagster), port_of(pages.mlflow))) == [WANTED_PORT + 1, WANTED_PORT + 2]


@pytest.mark.slow
def test_other_machines_are_let_in_only_when_asked_to_and_nothing_is_left_when_it_is_killed(
    chain: Chain, tmp_path: Path
):
    said, storage = tmp_path / "said", chain.copy(tmp_path / "storage").storage.root
    everywhere = ("--host", "0.0.0.0", "--allow-remote")
    pages = start_ui(chain.recipe_file, storage, *everywhere, said=said, home="/elsewhere")
    name = socket.gethostname()
    assert {host for host, _ in listening(psutil.Process(pages.process.pid))} == {"0.0.0.0"}
    assert pages.dagster == f"http://{name}:{port_of(pages.dagster)}/asset-groups"
    assert f"DAGSTER_HOME is /elsewhere; these pages, as every command of dflash, use {storage}/dagster" in (
        said.read_text()
    )
    # As a browser asks that was given this address; its own page is a stranger to MLflow unless it is told.
    port = port_of(pages.mlflow)
    assert searched(port, host=f"{name}:{port}", origin=f"http://{name}:{port}") == 200
    assert searched(port, host="rebound.example", origin="http://rebound.example") == 403
    family = psutil.Process(pages.process.pid).children(recursive=True)
    assert len(family) >= 6
    pages.process.kill()
    pages.process.wait(60)
    assert until(lambda: not [member for member in family if member.is_running()], seconds=60)


@pytest.mark.slow
def test_a_tracking_server_is_shown_and_none_started_and_a_daemons_death_is_told(chain: Chain, tmp_path: Path):
    said = tmp_path / "said"
    recipe = write_recipe(tmp_path / "tiny.yaml", tracking={"uri": "http://127.0.0.1:1/"})
    pages = start_ui(recipe, chain.copy(tmp_path / "storage").storage.root, said=said)
    assert pages.mlflow == "http://127.0.0.1:1"
    family = psutil.Process(pages.process.pid).children(recursive=True)
    assert not [member for member in family if "mlflow" in member.cmdline()]
    [daemon] = [member for member in family if "dagster._daemon" in member.cmdline()]
    daemon.kill()
    assert pages.process.wait(60) == 1
    assert pages.process.stdout
    told = json.loads(pages.process.stdout.read())["error"]["what"]
    assert told == "the Dagster daemon ended with exit code -9, and the others with it"
    assert [member for member in family if member.is_running()] == []


def test_without_leave_nothing_is_started_for_other_machines(chain: Chain):
    asked = subprocess.run(
        [*UI, str(chain.recipe_file), "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60
    )
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--host: 0.0.0.0 can be reached from other machines, and the pages have no login" in asked.stderr
    assert "add --allow-remote" in asked.stderr


def searched(port: int, *, host: str, origin: str) -> int:
    """The status of the call that MLflow's page makes for its table of runs."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Host": host, "Origin": origin, "Content-Type": "application/json"}
    body = json.dumps({"experiment_ids": ["0"]})
    connection.request("POST", "/ajax-api/2.0/mlflow/runs/search", body=body, headers=headers)
    return connection.getresponse().status
