"""What docs/deployment/ says, run without systemd: ExecStart lines of the units, with their environment."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.conftest import ROOT
from tests.launch.processes import until

FOLDER = ROOT / "docs" / "deployment"
SERVICES = tuple(sorted(path.stem for path in FOLDER.glob("*.service")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What systemd and the administrator put in: %h, %t, the file ~/.config/dflash/env, and the two ports."""

    home: Path
    runtime: Path
    environment: Mapping[str, str]
    dagster_port: int
    mlflow_port: int

    def filled(self, text: str) -> str:
        for written, meant in (
            ("%h", str(self.home)),
            ("%t", str(self.runtime)),
            (":5000", f":{self.mlflow_port}"),
            ("--port 5000", f"--port {self.mlflow_port}"),
            ("--port 3000", f"--port {self.dagster_port}"),
        ):
            text = text.replace(written, meant)
        return text


def settings(service: str, section: str = "Service") -> list[tuple[str, str]]:
    """`Name=value` lines of a section, in order; a name may come more than once."""
    found: list[tuple[str, str]] = []
    current = ""
    for line in (FOLDER / f"{service}.service").read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif current == section and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.append((name, value))
    return found


def lines(service: str, name: str) -> list[str]:
    """The command lines of ExecStart or ExecStartPre."""
    return [value for key, value in settings(service) if key == name]


class Unit:
    """A service that was started: every process that came from it, as systemd's control group would hold them."""

    def __init__(self, service: str, place: Place) -> None:
        self.service = service
        self._place = place
        self.environment = dict(place.environment)
        for name, value in settings(service):
            if name == "Environment":
                key, _, text = place.filled(value).partition("=")
                self.environment[key] = text
        self._seen: dict[int, psutil.Process] = {}
        for command in self._commands("ExecStartPre"):
            # Restart=on-failure, every five seconds and for ever.
            assert until(lambda command=command: self._prepared(command), seconds=120), command
        [command] = self._commands("ExecStart")
        self.log = place.home / f"{service}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, cwd=place.home, stdout=log, stderr=log)

    def family(self) -> list[psutil.Process]:
        """All of its processes that still are; found by parents, and remembered after these have gone."""
        roots = [*self._seen.values()] or [psutil.Process(self.process.pid)]
        for member in roots:
            with suppress(psutil.NoSuchProcess):
                self._seen |= {child.pid: child for child in [member, *member.children(recursive=True)]}
        return [member for member in self._seen.values() if _lives(member)]

    def stop(self) -> float:
        """As `systemctl stop` with KillMode=control-group: SIGTERM to each, and the seconds until all had gone."""
        family = self.family()
        for member in family:
            if _lives(member):
                with suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGTERM)
        [limit] = [int(value) for name, value in settings(self.service) if name == "TimeoutStopSec"]
        began = time.monotonic()
        while self.family() and time.monotonic() - began < limit:
            self.process.poll()
            time.sleep(0.1)
        took = time.monotonic() - began
        for member in self.family():
            with suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait(10)
        return float(took)

    def _prepared(self, command: list[str]) -> bool:
        program = command[0].removeprefix("-")
        line = [program, *command[1:]]
        ended = subprocess.run(line, env=self.environment, cwd=self._place.home, timeout=200, check=False)
        return ended.returncode == 0 or command[0].startswith("-")

    def _commands(self, name: str) -> list[list[str]]:
        found = [shlex.split(self._place.filled(line)) for line in lines(self.service, name)]
        return [[re.sub(r"\$\{(\w+)\}", self._variable, word) for word in command] for command in found]

    def _variable(self, match: re.Match[str]) -> str:
        return self.environment[match[1]]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def environment_file(place_home: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """env.example with a machine's own values, over as little as systemd gives a user's unit."""
    given = dict(
        line.split("=", 1) for line in (FOLDER / "env.example").read_text().splitlines() if re.match(r"[A-Z]", line)
    )
    assert set(changes) <= set(given) | {"PGHOST", "PGUSER", "PYTHONPATH", "OMP_NUM_THREADS"}
    basis = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**basis, "HOME": str(place_home), **given, **changes}
