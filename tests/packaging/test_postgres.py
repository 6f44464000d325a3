"""docs/deployment/ on a real PostgreSQL: the four units' own command lines, and a training that they carry."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.conftest import ROOT, tiny_recipe, write_recipe
from tests.launch.processes import until
from tests.packaging.units import FOLDER, Place, Unit, environment_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OVER = {"SUCCESS", "FAILURE", "CANCELED"}
LOCATION = "dflash_pipeline.assets.definitions"
LAUNCH = """mutation Launch($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
TERMINATE = "mutation Terminate($id: String!) { terminateRun(runId: $id) { __typename } }"
STATUS = "query Status($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
  name loadStatus locationOrLoadError { __typename } } } }
  instance { daemonHealth { allDaemonStatuses { daemonType healthy required } } } }"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server of its own, with the two databases; what libpq needs to find it, as environment."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed here: apt install postgresql")
    if importlib.util.find_spec("dagster_postgres") is None:
        pytest.skip("dagster-postgres is not installed here: make postgres")
    programs = found[-1].parent
    # It refuses to run as root. A socket's path may have 107 letters: not below pytest's folders.
    owner = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(subprocess.check_output([*owner, "mktemp", "-d"], text=True, cwd="/").strip())
    data = folder / "data"

    def call(program: str, *arguments: str) -> None:
        command = [*owner, str(programs / program), *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=120)

    call("initdb", "--pgdata", str(data), "--auth", "trust", "--encoding", "UTF8")
    only_socket = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    call("pg_ctl", "--pgdata", str(data), "--wait", "--log", str(folder / "log"), "--options", only_socket, "start")
    try:
        if owner:
            subprocess.run([*owner, "chmod", "755", str(folder)], check=True)
        call("createuser", "--host", str(folder), "dflash")
        for database in ("dagster", "mlflow"):
            call("createdb", "--host", str(folder), "--owner", "dflash", database)
        yield {"PGHOST": str(folder), "PGUSER": "dflash"}
    finally:
        call("pg_ctl", "--pgdata", str(data), "--wait", "--mode", "immediate", "stop")
        subprocess.run([*owner, "rm", "-rf", str(folder)], check=True)


@dataclass(frozen=True, kw_only=True)
class Server:
    """The four units, started."""

    place: Place
    units: dict[str, Unit]

    @property
    def storage(self) -> Path:
        return Path(self.place.environment["DFLASH_STORAGE"])

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        address = f"http://127.0.0.1:{self.place.dagster_port}/graphql"
        request = Request(address, data=body, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            document = json.load(answer)
        assert "errors" not in document, document
        return document["data"]

    def answers(self) -> bool:
        """Whether the page answers, and shows the code and a daemon in good health."""
        try:
            found = self.ask(LOCATIONS)
        except (URLError, ConnectionError):
            return False
        kinds = [entry["locationOrLoadError"] for entry in found["workspaceOrError"]["locationEntries"]]
        daemons = found["instance"]["daemonHealth"]["allDaemonStatuses"]
        loaded = [kind["__typename"] for kind in kinds if kind] == ["RepositoryLocation"]
        return loaded and all(daemon["healthy"] for daemon in daemons if daemon["required"])

    def launch(self, *, epochs: int, **choices: Any) -> str:
        """`whole_chain` as the launchpad does; the run's id."""
        tags = {"dagster/asset_partition_range_start": "000", "dagster/asset_partition_range_end": f"{epochs - 1:03d}"}
        config = {"resources": {"workbench": {"config": {"epochs": epochs, **choices}}}}
        params = {
            "selector": {
                "jobName": "whole_chain",
                "repositoryName": "__repository__",
                "repositoryLocationName": LOCATION,
            },
            "runConfigData": config,
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        answer = self.ask(LAUNCH, params=params)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def status(self, run: str) -> str:
        return str(self.ask(STATUS, id=run)["runOrError"]["status"])

    def training(self) -> list[Any]:
        """Ranks that are at work."""
        ranks = []
        for member in self.units["dflash-code"].family():
            with suppress(psutil.NoSuchProcess):
                ranks += [member for word in member.cmdline() if word.startswith(f"{self.storage}/runs/")]
        return ranks

    def dflash(self, *arguments: str) -> tuple[int, str]:
        """The command in a shell with the same environment file."""
        program = str(self.place.home / "dflash" / ".venv" / "bin" / "dflash")
        ended = subprocess.run(
            [program, *arguments],
            env=dict(self.place.environment),
            cwd=self.place.home,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
        return ended.returncode, ended.stdout

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{unit.log.read_text()[-6000:]}" for name, unit in self.units.items())


@pytest.fixture(scope="module")
def server(postgres: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    (home / "dflash" / ".venv").mkdir(parents=True)
    (home / "dflash" / "docs").symlink_to(ROOT / "docs")
    (home / "dflash" / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    runtime = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    (runtime / "dflash").mkdir(mode=0o700)
    storage, dagster_port, mlflow_port = home / "storage", free_port(), free_port()
    recipe = tiny_recipe()
    environment = environment_file(
        home,
        {
            **postgres,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "OMP_NUM_THREADS": "1",
            "DFLASH_RECIPE": str(write_recipe(home / "mine.yaml", batching=recipe["batching"])),
            "DFLASH_STORAGE": str(storage),
            "DAGSTER_HOME": str(storage / "dagster"),
            "DFLASH_DAGSTER_YAML": str(FOLDER / "dagster-postgres.yaml"),
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow_port}",
            "MLFLOW_ARTIFACTS_DESTINATION": str(storage / "mlflow" / "artifacts"),
        },
    )
    place = Place(
        home=home, runtime=runtime, environment=environment, dagster_port=dagster_port, mlflow_port=mlflow_port
    )
    units: dict[str, Unit] = {}
    server = Server(place=place, units=units)
    try:
        for name in ("dflash-mlflow", "dflash-code", "dflash-webserver", "dflash-daemon"):
            units[name] = Unit(name, place)
        if not until(server.answers, seconds=180):
            pytest.fail(server.logs())
        yield server
    finally:
        for unit in reversed(units.values()):
            unit.stop()
        shutil.rmtree(runtime)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def count(server: Server, database: str, query: str) -> int:
    """One number, asked with psql."""
    environment = dict(server.place.environment)
    command = ["psql", "--no-psqlrc", "--tuples-only", "--no-align", "--dbname", database, "--command", query]
    return int(subprocess.check_output(command, env=environment, text=True))


def test_a_run_from_the_page_a_run_from_a_shell_and_a_terminated_one(server: Server):
    first = server.launch(epochs=2)
    assert until(lambda: server.status(first) in OVER, seconds=600)
    assert server.status(first) == "SUCCESS", server.logs()
    code, out = server.dflash("run", server.place.environment["DFLASH_RECIPE"], "--json")
    assert code == 0, out
    facts = json.loads(out)
    assert "trained_drafter" in facts["reused"]
    assert server.status(facts["dagster_run_id"]) == "SUCCESS"
    assert not list((server.storage / "dagster").rglob("*.db")), "a database beside PostgreSQL's"
    assert not (server.storage / "mlflow" / "mlflow.db").exists()
    assert count(server, "dagster", "select count(*) from runs where status = 'SUCCESS'") == 2
    assert count(server, "mlflow", "select count(*) from runs where status = 'FINISHED'") == 1
    assert count(server, "mlflow", "select count(*) from metrics") > 50

    second = server.launch(epochs=64, learning_rate=0.004)
    assert until(lambda: under_way(server), seconds=200), server.logs()
    # The page is not a parent of anything: whoever restarts it stops no training.
    server.units["dflash-webserver"].stop()
    assert server.training()
    server.units["dflash-webserver"] = Unit("dflash-webserver", server.place)
    assert until(server.answers, seconds=120)
    assert server.status(second) == "STARTED"
    server.ask(TERMINATE, id=second)
    assert until(lambda: server.status(second) in OVER, seconds=60)
    assert server.status(second) == "CANCELED"
    assert until(lambda: not server.training(), seconds=30)
    assert count(server, "mlflow", "select count(*) from runs where status = 'KILLED'") == 1
    assert server.dflash("doctor")[0] == 0


def test_stopping_the_code_unit_ends_a_training_with_a_checkpoint_and_the_next_run_goes_on_there(server: Server):
    choices = {"epochs": 64, "learning_rate": 0.003}
    run = server.launch(**choices)
    assert until(lambda: under_way(server), seconds=200), server.logs()
    assert server.units["dflash-code"].stop() < 60
    assert not server.training()
    assert server.status(run) in {"CANCELED", "FAILURE"}
    folder = newest_run(server)
    [attempt] = json.loads((folder / "run.json").read_text())["attempts"]
    assert attempt["status"] == "stopped"
    assert attempt["last_step"] > 0
    assert (folder / "checkpoints" / f"step_{attempt['last_step']:07d}").is_dir()

    # Ranks may end before MLflow has heard of it. The doctor in ExecStartPre sees to that.
    server.units["dflash-code"] = Unit("dflash-code", server.place)
    assert count(server, "mlflow", "select count(*) from runs where status in ('RUNNING', 'SCHEDULED')") == 0
    assert until(server.answers, seconds=120)
    launched: list[str] = []

    def launch() -> bool:
        # The page answers 500 until it has noticed that the code behind the socket is another process.
        with suppress(HTTPError):
            launched.append(server.launch(**choices))
        return bool(launched)

    assert until(launch, seconds=90), server.logs()
    [again] = launched
    assert until(lambda: len(json.loads((folder / "run.json").read_text())["attempts"]) == 2, seconds=120), (
        server.logs()
    )
    assert json.loads((folder / "run.json").read_text())["attempts"][1]["first_step"] == attempt["last_step"]
    server.ask(TERMINATE, id=again)
    assert until(lambda: server.status(again) in OVER, seconds=60)


def newest_run(server: Server) -> Path:
    return max(server.storage.glob("runs/*"), key=lambda folder: folder.stat().st_mtime)


def under_way(server: Server) -> bool:
    """Some steps are done: MLflow has the run, and there is something to save."""
    if not server.training():
        return False
    log = newest_run(server) / "events.jsonl"
    return log.exists() and len(log.read_text().splitlines()) > 12
