"""Both pages in the foreground: Dagster with its daemon, and MLflow, bound to this machine only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from dflash_pipeline.assets.instance import prepare_home
from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri

HOST = "127.0.0.1"
PORTS_TRIED = 50
START_SECONDS = 180.0
STOP_SECONDS = 10.0
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Servers = dict[str, "subprocess.Popen[bytes]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """Where the pages are, once both answer."""

    dagster: str
    mlflow: str
    experiment: str
    """Of the recipe, in MLflow."""


def serve_pages(recipe_path: Path, *, dagster_port: int, mlflow_port: int, tell: Callable[[Pages], None]) -> None:
    """Serve until SIGINT or SIGTERM, or until one of the servers ends. `tell` hears where, once both answer."""
    recipe = load_recipe(recipe_path)
    storage = open_storage(recipe.storage)
    dagster = _free_port(dagster_port, option="--dagster-port")
    mlflow = _free_port(mlflow_port, option="--mlflow-port", but_not=dagster)
    environment = _environment(recipe_path, storage)
    (storage.root / "mlflow").mkdir(parents=True, exist_ok=True)
    servers: Servers = {}
    with _interruptible():
        try:
            servers["Dagster"] = _start(_dagster_command(dagster), environment)
            servers["MLflow"] = _start(_mlflow_command(mlflow, storage), environment)
            _wait_until_open({"Dagster": dagster, "MLflow": mlflow}, servers)
            tell(
                Pages(
                    dagster=f"http://{HOST}:{dagster}/asset-groups",
                    mlflow=_training_page(mlflow, recipe.name),
                    experiment=recipe.name,
                )
            )
            while True:
                _refuse_ended(servers)
                time.sleep(1)
        except KeyboardInterrupt:
            return
        finally:
            _stop(servers)


def _environment(recipe_path: Path, storage: Storage) -> dict[str, str]:
    return {
        **os.environ,
        "DAGSTER_HOME": str(prepare_home(storage)),
        "DFLASH_RECIPE": str(recipe_path.resolve()),
        "DFLASH_STORAGE": str(storage.root),
        "PYTHONWARNINGS": "ignore",
        # Seven processes for jobs that nothing here asks for.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def _dagster_command(port: int) -> list[str]:
    module = "dflash_pipeline.assets.definitions"
    return [
        *(sys.executable, "-m", "dagster", "dev", "-m", module, "-h", HOST, "-p", str(port)),
        *("--log-level", "warning"),
    ]


def _mlflow_command(port: int, storage: Storage) -> list[str]:
    store, artifacts = tracking_uri(storage.root), artifact_location(storage.root)
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port)),
        *("--backend-store-uri", store, "--default-artifact-root", artifacts, "--no-serve-artifacts"),
        *("--allowed-hosts", f"localhost:{port},{HOST}:{port}", "--workers", "1"),
        *("--uvicorn-opts", "--log-level warning"),
    ]


def _start(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches this process alone, which then ends both. The tether ends them when it dies.
    tether = [sys.executable, "-m", "dflash_pipeline.launch.tether", str(os.getpid()), "--"]
    return subprocess.Popen(
        [*tether, *command],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _training_page(port: int, experiment: str) -> str:
    """The curves of the experiment's runs; the front page, which shows other things first, while it has none."""
    page = f"http://{HOST}:{port}"
    try:
        with urlopen(f"{page}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(experiment)}") as answer:
            number = json.load(answer)["experiment"]["experiment_id"]
    except HTTPError:
        return page
    return f"{page}/#/experiments/{number}/runs?workflowType=machine_learning&compareRunsMode=CHART"


def _free_port(wanted: int, *, option: str, but_not: int | None = None) -> int:
    last = min(wanted + PORTS_TRIED, 2**16) - 1
    for port in range(wanted, last + 1):
        if port != but_not and _can_bind(port):
            return port
    raise Refused(f"no port from {wanted} to {last} is free", where=option, fix="give another, for example 13000")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port whose last connection has just closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _wait_until_open(ports: Mapping[str, int], servers: Servers) -> None:
    deadline = time.monotonic() + START_SECONDS
    for name, port in ports.items():
        while not _is_open(port):
            _refuse_ended(servers)
            if time.monotonic() > deadline:
                raise Failed(
                    f"{name} did not open port {port} within {START_SECONDS:.0f} s",
                    where="dflash ui",
                    fix="see its lines above",
                )
            time.sleep(0.2)


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _refuse_ended(servers: Servers) -> None:
    for name, server in servers.items():
        if server.poll() is not None:
            raise Failed(
                f"{name} ended with exit code {server.returncode}", where="dflash ui", fix="see its lines above"
            )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Each of the signals is Ctrl-C here, before the first server starts; SIGINT too where a shell has it ignored."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(servers: Servers) -> None:
    """SIGTERM to both, SIGKILL to what is left of them after a grace. A second Ctrl-C cannot leave one behind."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    groups = [server.pid for server in servers.values()]
    deadline = time.monotonic() + STOP_SECONDS
    left = [group for group in groups if _signal(group, signal.SIGTERM)]
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        for server in servers.values():
            server.poll()
        # A server may end before those it has started: the group is what counts.
        left = [group for group in left if _signal(group, 0)]
    for group in left:
        _signal(group, signal.SIGKILL)
    for server in servers.values():
        server.wait()


def _signal(group: int, number: int) -> bool:
    """Whether the group still had a process to get the signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
