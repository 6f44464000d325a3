"""Where the pages may be reached: this machine only, unless somebody says in so many words that others may."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from dflash_pipeline.contracts.errors import Refused

THIS_MACHINE = "127.0.0.1"
PORTS_TRIED = 50
_EVERYWHERE = ("0.0.0.0", "::")


def allowed_host(host: str, *, remote: bool) -> str:
    """`host`, if only this machine reaches it, or if `remote` says that others may. Refused otherwise."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise Refused(
            f"{host!r} is no address of this machine", where="--host", fix=f"use {THIS_MACHINE}, the default"
        ) from error
    if remote or all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found):
        return host
    raise Refused(
        f"{host} can be reached from other machines, and the pages have no login: whoever reaches them may start, stop "
        "and delete everything",
        where="--host",
        fix="stay with 127.0.0.1 and use `ssh -L` (docs/deployment.md), or add --allow-remote",
    )


def shown_host(host: str) -> str:
    """What a browser is given: a name of this machine where `host` means every address."""
    return _in_address(socket.gethostname() if host in _EVERYWHERE else host)


def asked_host(host: str) -> str:
    """What this machine itself connects to."""
    return {"0.0.0.0": THIS_MACHINE, "::": "::1"}.get(host, host)


def mlflow_names(host: str) -> list[str]:
    """Names under which browsers may ask for MLflow; by any other one it answers 403 (against DNS rebinding).

    Where `host` means every address, these are this machine's names and addresses, and those that
    MLFLOW_SERVER_ALLOWED_HOSTS gives, such as a proxy's.
    """
    names = ["localhost", THIS_MACHINE, *([] if host in _EVERYWHERE else [_in_address(host)])]
    if host in _EVERYWHERE:
        names += [socket.gethostname(), socket.getfqdn()]
        names += [
            _in_address(address.address.partition("%")[0])
            for addresses in psutil.net_if_addrs().values()
            for address in addresses
            if address.family in (socket.AF_INET, socket.AF_INET6)
        ]
    return list(dict.fromkeys(names))


def allowed_by_environment() -> list[str]:
    """Names with their ports, such as those of a proxy, that the user has set for MLflow."""
    given = os.environ.get("MLFLOW_SERVER_ALLOWED_HOSTS", "")
    return [name.strip() for name in given.split(",") if name.strip()]


@contextmanager
def kept_port(wanted: int, *, host: str, option: str) -> Iterator[int]:
    """`wanted`, or the next one that is free at `host`; while it is used, no other `dflash ui` of this user takes it.

    Between the look and the server's own binding lie seconds, in which another one would find the same port free.
    """
    last = min(wanted + PORTS_TRIED, 2**16) - 1
    for port in range(wanted, last + 1):
        with _lock(port) as locked:
            if locked and _can_bind(host, port):
                yield port
                return
    raise Refused(f"no port from {wanted} to {last} is free", where=option, fix="give another, for example 13000")


@contextmanager
def _lock(port: int) -> Iterator[bool]:
    """Whether it is ours now. The lock goes with its process, however that ends; the empty file stays."""
    path = Path(tempfile.gettempdir()) / f"dflash-port-{os.getuid()}-{port}.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def is_open(host: str, port: int) -> bool:
    with socket.socket(_family(host)) as probe:
        return probe.connect_ex((asked_host(host), port)) == 0


def _can_bind(host: str, port: int) -> bool:
    with socket.socket(_family(host)) as probe:
        # As servers do: a port whose last connection has just closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
