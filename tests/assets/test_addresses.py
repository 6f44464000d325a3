"""Who may reach the pages, and under which names MLflow answers."""

from __future__ import annotations

import socket

import pytest

from dflash_pipeline.assets.addresses import allowed_host, asked_host, is_open, kept_port, mlflow_names, shown_host
from dflash_pipeline.contracts.errors import Refused


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "::1"])
def test_this_machine_needs_no_leave(host: str):
    assert allowed_host(host, remote=False) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "2001:db8::7"])
def test_everything_else_is_refused_until_it_is_allowed(host: str):
    with pytest.raises(
        Refused, match=f"--host: {host} can be reached from other machines, and the pages have no login"
    ):
        allowed_host(host, remote=False)
    assert allowed_host(host, remote=True) == host


@pytest.mark.parametrize("host", ["no such name", "300.1.1.1", "a" * 300])
@pytest.mark.parametrize("remote", [False, True])
def test_what_is_no_address_is_refused(host: str, remote: bool):
    with pytest.raises(Refused, match="is no address of this machine"):
        allowed_host(host, remote=remote)


def test_every_address_is_shown_by_the_machines_name_and_asked_at_home():
    assert shown_host("0.0.0.0") == socket.gethostname()
    assert (asked_host("0.0.0.0"), asked_host("::"), asked_host("192.0.2.7")) == ("127.0.0.1", "::1", "192.0.2.7")
    assert shown_host("::1") == "[::1]"


def test_mlflow_answers_to_no_name_that_was_not_meant():
    assert mlflow_names("127.0.0.1") == ["localhost", "127.0.0.1"]
    assert mlflow_names("192.0.2.7") == ["localhost", "127.0.0.1", "192.0.2.7"]
    everywhere = mlflow_names("0.0.0.0")
    assert socket.gethostname() in everywhere
    assert not [name for name in everywhere if "*" in name or name in ("", "0.0.0.0")]


def test_the_search_for_a_port_ends_at_the_last_one():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with kept_port(port, host="127.0.0.1", option="--dagster-port") as found:
            assert found > port
        assert is_open("127.0.0.1", port)
        assert is_open("0.0.0.0", port)
    assert not is_open("127.0.0.1", port)
    with (
        socket.create_server(("127.0.0.1", 65535)),
        pytest.raises(Refused, match="no port from 65535 to 65535 is free"),
    ):
        kept_port(65535, host="127.0.0.1", option="--dagster-port").__enter__()


def test_two_that_look_at_once_find_different_ports():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with (
        kept_port(port, host="127.0.0.1", option="--dagster-port") as first,
        kept_port(port, host="127.0.0.1", option="--mlflow-port") as second,
    ):
        assert port <= first < second
    with kept_port(port, host="127.0.0.1", option="--dagster-port") as again:
        assert again == first
