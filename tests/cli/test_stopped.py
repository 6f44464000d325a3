"""SIGTERM, as supervisors send it, is answered as Ctrl-C is: in order, with a sentence and in JSON."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
import typer

from dflash_pipeline.cli.output import answering


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_command_started_ends_before_it(capsys: pytest.CaptureFixture[str], number: int) -> None:
    ended = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            threading.Event().wait(20)
        finally:
            ended.append("what it started")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as left, answering(as_json=False):
        work()
    assert (left.value.exit_code, ended) == (130, ["what it started"])
    assert "interrupted; the same command goes on where it stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_answer_is_json_then_too(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(20)

    with pytest.raises(typer.Exit), answering(as_json=True):
        work()
    assert json.loads(capfd.readouterr().out)["error"]["what"] == "interrupted"
