"""What scripts rely on, whatever the command: one document, three exit codes, one sentence an error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import typer

from dflash_pipeline.cli.output import answering, print_json
from dflash_pipeline.contracts.errors import Failed, Refused


def test_only_the_answer_reaches_standard_output(capfd):
    with answering(as_json=True) as answer:
        print("said by Python")
        os.write(1, b"said by a library in C\n")
        subprocess.run(["echo", "said by a child"], check=True)
        answer.say({"steps": 3}, lambda: None)
    out, err = capfd.readouterr()
    assert out == '{\n "steps": 3\n}\n'
    for said in ("by Python", "by a library in C", "by a child"):
        assert f"said {said}" in err
    print("afterwards")
    assert capfd.readouterr().out == "afterwards\n"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (Refused("no rows", where="a.jsonl", fix="give some"), 2, "dflash: a.jsonl: no rows; give some\n"),
        (Failed("rank 1 died", where="run 7", fix="run again"), 1, "dflash: run 7: rank 1 died; run again\n"),
        (
            OSError(errno.EISDIR, "Is a directory", "data"),
            2,
            "dflash: data: Is a directory; give a file, not a folder\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "plan.json"),
            1,
            "dflash: plan.json: No space left on device; free space and run again: it goes on where it stopped\n",
        ),
        (OSError(errno.EIO, "Input/output error"), 1, "dflash: a file: Input/output error; see what is wrong"),
        (MemoryError(), 1, "dflash: this machine: there is not enough memory"),
        (KeyError("x"), 1, "dflash: a defect in dflash: KeyError: 'x'; run the same command with --debug"),
        (KeyboardInterrupt(), 130, "dflash: interrupted; the same command goes on where it stopped\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_sentence_and_an_exit_code(error, code, sentence, capfd):
    with pytest.raises(typer.Exit) as ended, answering(as_json=False):
        raise error
    out, err = capfd.readouterr()
    assert ended.value.exit_code == code
    assert err.startswith(sentence)
    assert err.count("\n") == 1
    assert out == ""


def test_an_error_as_json_tells_what_was_known_by_then(capfd):
    def work(known):
        known["accepted"] = 0
        raise Refused("no rows", where="a.jsonl", fix="give some")

    with pytest.raises(typer.Exit), answering(as_json=True) as answer:
        work(answer.known)
    out, err = capfd.readouterr()
    assert out.replace("\n", "").replace("  ", " ") == (
        '{ "error": { "what": "no rows", "where": "a.jsonl", "fix": "give some" }, "accepted": 0}'
    )
    assert err == ""


def test_a_traceback_on_demand_alone(capfd):
    for debug in (False, True):
        with pytest.raises(typer.Exit), answering(as_json=True, debug=debug):
            raise Refused("no rows", where="a.jsonl", fix="give some")
        out, err = capfd.readouterr()
        assert ("Traceback" in err) == debug
        assert "Traceback" not in out


def test_json_holds_no_number_that_json_lacks(capfd):
    print_json({"loss": [float("nan"), float("inf"), -float("inf"), 1.5]})
    assert capfd.readouterr().out == '{\n "loss": [\n  "NaN",\n  "Infinity",\n  "-Infinity",\n  1.5\n ]\n}\n'


def test_a_file_name_of_odd_bytes_is_printed(dflash, tmp_path):
    name = os.fsdecode(b"caf\xe9.npy")
    ran = dflash("boundaries", "--lengths", tmp_path / name, "--json")
    assert (ran.code, ran.document["error"]["where"]) == (2, str(tmp_path / name))
    assert "caf\\udce9.npy" in dflash("boundaries", "--lengths", tmp_path / name).err


def test_a_reader_that_has_gone_is_no_traceback(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    program = [sys.executable, "-c", "from dflash_pipeline.cli import main; main(['plan', '--help'])"]
    ended = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")
