"""`dflash ui` as a program: on this machine only, on free ports, and gone without a trace."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from dflash_pipeline.assets.pages import _free_port
from dflash_pipeline.contracts.errors import Refused
from tests.browser.conftest import WANTED_PORT, Pages, start_ui
from tests.conftest import Chain
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


def test_nothing_is_left_when_it_is_killed(chain: Chain, tmp_path: Path):
    pages = start_ui(chain.recipe_file, chain.copy(tmp_path / "storage").storage.root)
    family = psutil.Process(pages.process.pid).children(recursive=True)
    assert len(family) >= 4
    pages.process.kill()
    pages.process.wait(60)
    assert until(lambda: not [member for member in family if member.is_running()], seconds=60)


def test_the_search_for_a_port_ends_at_the_last_one():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert _free_port(port, option="--dagster-port") > port
    with (
        socket.create_server(("127.0.0.1", 65535)),
        pytest.raises(Refused, match="no port from 65535 to 65535 is free"),
    ):
        _free_port(65535, option="--dagster-port")
