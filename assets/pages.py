"""Both pages in the foreground: Dagster with its daemon, and MLflow, bound to this machine only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dflash_pipeline.assets.instance import prepare_home
from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import open_storage
from dflash_pipeline.tracking.store_uri import artifact_location, tracking_uri

HOST = "127.0.0.1"
PORTS_TRIED = 50
STOP_SECONDS = 10.0


def serve_pages(recipe_path: Path, *, dagster_port: int, mlflow_port: int) -> None:
    """Serve until interrupted or until one of the servers ends."""
    recipe = load_recipe(recipe_path)
    storage = open_storage(recipe.storage)
    home = prepare_home(storage)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "DFLASH_RECIPE": str(recipe_path.resolve()),
        "DFLASH_STORAGE": str(storage.root),
        "PYTHONWARNINGS": "ignore",
    }
    dagster, mlflow = _free_port(dagster_port), _free_port(mlflow_port, but_not=dagster_port)
    (storage.root / "mlflow").mkdir(parents=True, exist_ok=True)
    servers = {
        "Dagster": _start(_dagster_command(dagster), environment),
        "MLflow": _start(
            _mlflow_command(mlflow, tracking_uri(storage.root), artifact_location(storage.root)), environment
        ),
    }
    try:
        _wait_until_open({"Dagster": dagster, "MLflow": mlflow}, servers)
        print(f"Dagster  http://{HOST}:{dagster}", flush=True)
        print(f"MLflow   http://{HOST}:{mlflow}   (experiment {recipe.name}; choose Model training)", flush=True)
        print("Ctrl-C ends both.", flush=True)
        _watch(servers)
    finally:
        for server in servers.values():
            _stop(server)


def _dagster_command(port: int) -> list[str]:
    module = "dflash_pipeline.assets.definitions"
    return [sys.executable, "-m", "dagster", "dev", "-m", module, "-h", HOST, "-p", str(port)]


def _mlflow_command(port: int, store: str, artifacts: str) -> list[str]:
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port)),
        *("--backend-store-uri", store, "--default-artifact-root", artifacts, "--no-serve-artifacts"),
        *("--allowed-hosts", f"localhost:{port},{HOST}:{port}", "--workers", "1"),
    ]


def _start(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=dict(environment), start_new_session=True, stdout=subprocess.DEVNULL)


def _free_port(wanted: int, *, but_not: int | None = None) -> int:
    for port in range(wanted, wanted + PORTS_TRIED):
        with socket.socket() as probe:
            if port != but_not and probe.connect_ex((HOST, port)) != 0:
                return port
    raise Refused(
        f"ports {wanted} to {wanted + PORTS_TRIED - 1} are taken", where="dflash ui", fix="choose another with --…-port"
    )


def _wait_until_open(ports: Mapping[str, int], servers: Mapping[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 120
    for name, port in ports.items():
        while not _is_open(port):
            _refuse_ended(servers)
            if time.monotonic() > deadline:
                raise Failed(f"{name} did not open port {port} in time", where="dflash ui", fix="see its lines above")
            time.sleep(0.3)


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _refuse_ended(servers: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for name, server in servers.items():
        if server.poll() is not None:
            raise Failed(f"{name} ended with exit code {server.returncode}", where="dflash ui", fix="see its lines above")


def _watch(servers: Mapping[str, subprocess.Popen[bytes]]) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            _refuse_ended(servers)
            time.sleep(1)
    except KeyboardInterrupt:
        return


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is not None:
        return
    os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
