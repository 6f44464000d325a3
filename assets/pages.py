"""Both pages in the foreground: the processes that docs/deployment.md has as units, here as children of a command."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from dflash_pipeline.assets.addresses import (
    allowed_by_environment,
    asked_host,
    is_open,
    kept_port,
    mlflow_names,
    shown_host,
)
from dflash_pipeline.assets.doctor_runs import stuck_runs
from dflash_pipeline.assets.instance import open_instance, prepare_home
from dflash_pipeline.assets.links import MLFLOW_PAGE
from dflash_pipeline.assets.servers import Servers, interruptible, start, stop, wait_until, watch
from dflash_pipeline.recipe import load_recipe
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.tracking.store_uri import is_server, server_artifacts, server_uri
from dflash_pipeline.training.run_page import DAGSTER_PAGE

MODULE = "dflash_pipeline.assets.definitions"
CODE, PAGE, DAEMON, MLFLOW = "the code location", "the Dagster page", "the Dagster daemon", "MLflow"
ASK_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """Where the pages are, once both answer."""

    dagster: str
    mlflow: str
    experiment: str
    """Of the recipe, in MLflow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a user asks of the pages. `host` has been looked at by `allowed_host`."""

    host: str
    dagster_port: int
    mlflow_port: int


def serve_pages(
    recipe_path: Path, wanted: Wanted, *, tell: Callable[[Pages], None], note: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM, or until one of the servers ends: Failed, with its name.

    `tell` hears where, once both answer; `note` hears what else a user should know. Where the recipe, or else
    MLFLOW_TRACKING_URI, names an MLflow server, that one is shown, and none is started.
    """
    recipe = load_recipe(recipe_path)
    storage = open_storage(recipe.storage)
    host = wanted.host
    tracking = server_uri(recipe.tracking.uri, storage.root)
    environment = _environment(recipe_path, storage, note)
    (storage.root / "mlflow").mkdir(parents=True, exist_ok=True)
    _end_cut_off_runs(storage, note)
    servers: Servers = {}
    with (
        interruptible(),
        kept_port(wanted.dagster_port, host=host, option="--dagster-port") as dagster,
        kept_port(wanted.mlflow_port, host=host, option="--mlflow-port") as mlflow,
        tempfile.TemporaryDirectory(prefix="dflash-") as folder,
    ):
        environment[DAGSTER_PAGE] = f"http://{shown_host(host)}:{dagster}"
        environment[MLFLOW_PAGE] = f"http://{shown_host(host)}:{mlflow}"
        workspace, code = _workspace(Path(folder))
        try:
            servers[CODE] = start(_code_command(code), environment)
            if not is_server(tracking):
                own = environment | {"MLFLOW_BACKEND_STORE_URI": tracking}
                servers[MLFLOW] = start(_mlflow_command(host, mlflow, server_artifacts(tracking, storage.root)), own)
            # A page that is up before the code shows an empty workspace.
            wait_until(lambda: _answers(code), CODE, servers)
            servers[DAEMON] = start(_dagster("dagster._daemon", "run", "-w", str(workspace)), environment)
            page = _dagster("dagster_webserver", "-w", str(workspace), "-h", host, "-p", str(dagster))
            servers[PAGE] = start(page, environment)
            wait_until(lambda: is_open(host, dagster), PAGE, servers)
            wait_until(lambda: MLFLOW not in servers or is_open(host, mlflow), MLFLOW, servers)
            address = tracking.rstrip("/") if is_server(tracking) else f"http://{shown_host(host)}:{mlflow}"
            asked = address if is_server(tracking) else f"http://{asked_host(host)}:{mlflow}"
            tell(
                Pages(
                    dagster=f"http://{shown_host(host)}:{dagster}/asset-groups",
                    mlflow=address + _training_page(asked, recipe.name),
                    experiment=recipe.name,
                )
            )
            watch(servers)
        except KeyboardInterrupt:
            return
        finally:
            stop(
                servers,
                saving=CODE,
                wait=lambda: note("a training writes its checkpoint, then the code ends; Ctrl-C again does not wait"),
            )


def _environment(recipe_path: Path, storage: Storage, note: Callable[[str], None]) -> dict[str, str]:
    given = os.environ.get("DAGSTER_HOME")
    home = str(prepare_home(storage))
    if given and Path(given).resolve() != Path(home).resolve():
        note(f"DAGSTER_HOME is {given}; these pages, as every command of dflash, use {home}")
    return {
        **os.environ,
        "DAGSTER_HOME": home,
        "DFLASH_RECIPE": str(recipe_path.resolve()),
        "DFLASH_STORAGE": str(storage.root),
        "PYTHONWARNINGS": "ignore",
        # Seven processes for jobs that nothing here asks for.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def _end_cut_off_runs(storage: Storage, note: Callable[[str], None]) -> None:
    """Nobody else would: the page would show them as going on for ever."""
    with open_instance(storage) as instance:
        for ailment in stuck_runs(instance):
            if ailment.mend is not None:
                ailment.mend()
                note(f"{ailment.finding.where}: {ailment.finding.what}; now it says FAILURE")


def _workspace(folder: Path) -> tuple[Path, Path]:
    """A workspace file and the socket that it names. The folder is this user's alone: whoever reaches code runs it."""
    code, workspace = folder / "code.sock", folder / "workspace.yaml"
    location = {"grpc_server": {"socket": str(code), "location_name": MODULE}}
    workspace.write_text(json.dumps({"load_from": [location]}))  # JSON is YAML.
    return workspace, code


def _code_command(code: Path) -> list[str]:
    return _dagster("dagster", "code-server", "start", "--socket", str(code), "-m", MODULE)


def _dagster(module: str, *arguments: str) -> list[str]:
    level = "--dagster-log-level" if module == "dagster_webserver" else "--log-level"
    return [sys.executable, "-m", module, *arguments, level, "warning"]


def _mlflow_command(host: str, port: int, artifacts: str | None) -> list[str]:
    names = [f"{name}:{port}" for name in mlflow_names(host)]
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)),
        *(("--default-artifact-root", artifacts, "--no-serve-artifacts") if artifacts else ()),
        *("--allowed-hosts", ",".join([*names, *allowed_by_environment()])),
        # Its own page, too, is a stranger to it under any name but localhost.
        *("--cors-allowed-origins", ",".join(f"http://{name}" for name in names)),
        *("--workers", "1", "--uvicorn-opts", "--log-level warning"),
    ]


def _answers(code: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(code)) == 0


def _training_page(address: str, experiment: str) -> str:
    """The curves of the experiment's runs; nothing, for the front page, while it has none or the server is silent."""
    name = f"{address}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(experiment)}"
    try:
        with urlopen(name, timeout=ASK_SECONDS) as answer:
            found: Mapping[str, dict[str, str]] = json.load(answer)
    except (OSError, ValueError):
        return ""
    number = found["experiment"]["experiment_id"]
    return f"/#/experiments/{number}/runs?workflowType=machine_learning&compareRunsMode=CHART"
