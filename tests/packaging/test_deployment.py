"""The files in docs/deployment/: what they start, who can reach it, and that they agree with dagster.yaml."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.packaging.units import FOLDER, SERVICES, lines, settings

OTHERS = ["dflash.target", *(f"{name}.service" for name in SERVICES)]


def test_there_is_a_unit_for_each_process_and_the_target_wants_them_all():
    assert SERVICES == ("dflash-code", "dflash-daemon", "dflash-mlflow", "dflash-webserver")
    [wanted] = re.findall(r"^Wants=(.*)$", (FOLDER / "dflash.target").read_text(), re.M)
    assert set(wanted.split()) == {f"{name}.service" for name in SERVICES}


def test_systemd_takes_the_units_as_they_are(tmp_path: Path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed here")
    (tmp_path / "systemd").mkdir()
    # Programs are looked for; %h is a home that is not there.
    programs = str(Path(sys.executable).parent)
    for name in OTHERS:
        (tmp_path / name).write_text((FOLDER / name).read_text().replace("%h/dflash/.venv/bin", programs))
    command = [analyze, "verify", "--user", *(str(tmp_path / name) for name in OTHERS)]
    asked = subprocess.run(
        command, env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert (asked.returncode, asked.stderr) == (0, "")


@pytest.mark.parametrize("service", SERVICES)
def test_every_unit_reads_the_environment_file_comes_back_and_ends_whole(service: str):
    found = dict(settings(service))
    assert found["EnvironmentFile"] == "%h/.config/dflash/env"
    assert found["Restart"] == "on-failure"
    assert dict(settings(service, "Unit"))["StartLimitIntervalSec"] == "0"
    # `mixed` or `process` would leave ranks to SIGKILL, or to nobody.
    assert found.get("KillMode", "control-group") == "control-group"
    assert int(found["TimeoutStopSec"]) >= (60 if service == "dflash-code" else 10)


def test_pages_are_for_this_machine_and_the_code_for_this_user():
    for service in ("dflash-webserver", "dflash-mlflow"):
        [line] = lines(service, "ExecStart")
        assert "--host 127.0.0.1 " in line
    [code] = lines("dflash-code", "ExecStart")
    assert "--socket %t/dflash/code.sock" in code
    assert not re.search(r"--(host|port)\b", code)
    assert dict(settings("dflash-code"))["RuntimeDirectoryMode"] == "0700"


def test_no_password_is_in_a_file_or_on_a_command_line():
    for path in FOLDER.iterdir():
        assert not re.search(r"//[^/\s]*:[^/\s]*@|(?i:password)=\S", path.read_text()), path.name
    assert not any("store-uri" in line for service in SERVICES for line in lines(service, "ExecStart"))


def test_the_settings_are_those_of_dagster_yaml_with_another_storage():
    ours, theirs = (
        yaml.safe_load(path.read_text()) for path in (ROOT / "dagster.yaml", FOLDER / "dagster-postgres.yaml")
    )
    assert theirs.pop("storage") == {"postgres": {"postgres_url": {"env": "DFLASH_DAGSTER_DB"}}}
    assert theirs == ours


def test_every_variable_that_a_file_asks_for_is_in_the_example():
    given = set(re.findall(r"^#?([A-Z_]+)=", (FOLDER / "env.example").read_text(), re.M))
    asked = {name for path in FOLDER.glob("*.service") for name in re.findall(r"\$\{(\w+)\}", path.read_text())}
    asked |= set(re.findall(r"env: (\w+)", (FOLDER / "dagster-postgres.yaml").read_text()))
    assert asked <= given
    # A shell reads it, too.
    script = 'set -aeu; . ./env.example; test -n "$DFLASH_RECIPE"'
    assert subprocess.run(["sh", "-c", script], cwd=FOLDER).returncode == 0


def test_the_example_is_no_program():
    assert not any(path.stat().st_mode & stat.S_IXUSR for path in FOLDER.iterdir())
