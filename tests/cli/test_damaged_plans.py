"""What `dflash manifest` says of plans that are damaged: each fault once, by the file's name, with what mends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_pipeline.store.plans import _sealed, epoch_file

AGAIN = "make it again as it was made: with `dflash run`, or with `dflash plan` and the same options"
UNMATCHED = "its bytes do not match the hash it was written with"


@pytest.fixture
def options(tmp_path: Path) -> list[object]:
    np.save(tmp_path / "lengths.npy", np.array([3, 3, 5, 5, 8, 8]))
    lengths = ["--lengths", tmp_path / "lengths.npy"]
    return [*lengths, "--token-budget", 16, "--slots-per-step", 2, "--epochs", 2, "--out", tmp_path / "plan"]


@pytest.fixture
def plan(dflash, options, tmp_path: Path) -> Path:
    assert dflash("plan", *options).code == 0
    return tmp_path / "plan"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, column: str, value: int) -> None:
    """A whole file, by its hash, whose first micro-batch is none that any plan holds."""
    table = pq.read_table(path)
    values = table[column].to_numpy().copy()
    values[0] = value
    changed = table.set_column(table.column_names.index(column), column, pa.array(values))
    sink = pa.BufferOutputStream()
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), sink)
    path.write_bytes(_sealed(sink.getvalue().to_pybytes()))


def test_a_damaged_epoch_is_shown_as_one_sentence(dflash, plan):
    flip(epoch_file(plan, 1))
    ran = dflash("manifest", "show", plan)
    assert ran.code == 2
    assert ran.err == f"dflash: {epoch_file(plan, 1)}: {UNMATCHED}; {AGAIN}\n"


def test_an_epoch_that_breaks_its_contract_is_told_with_its_place_and_one_fix(dflash, plan):
    rewrite(epoch_file(plan, 0), "num_tokens", 999)
    error = dflash("manifest", "show", plan, "--json").document["error"]
    assert error["where"] == str(epoch_file(plan, 0))
    assert error["what"].startswith("epoch 0")
    assert "999" in error["what"]
    assert ";" not in error["what"]
    assert error["fix"] == AGAIN


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_epoch_is_not_compared(dflash, options, plan, tmp_path, damaged):
    folders = [plan, tmp_path / "same"]
    assert dflash("plan", *options, "--out", folders[1]).code == 0
    assert dflash("manifest", "diff", *folders, "--json").document["same"] is True
    flip(epoch_file(folders[damaged], 1))
    ran = dflash("manifest", "diff", *folders, "--json")
    assert ran.code == 2
    assert ran.document == {
        "error": {"what": UNMATCHED, "where": str(epoch_file(folders[damaged], 1)), "fix": AGAIN},
    }


def test_an_epoch_of_another_plan_is_not_compared(dflash, options, plan, tmp_path):
    assert dflash("plan", *options, "--out", tmp_path / "other", "--seed", 1).code == 0
    epoch_file(tmp_path / "other", 0).replace(epoch_file(plan, 0))
    ran = dflash("manifest", "diff", plan, plan, "--json")
    assert ran.code == 2
    assert "is not the epoch" in ran.document["error"]["what"]


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (Path.unlink, "it is missing"),
        (lambda path: path.write_text(path.read_text().replace('"seed": 0', '"seed": 1')), "it is not the spec that"),
        (lambda path: path.write_text("{"), "not a valid BatchingSpec"),
    ],
    ids=["missing", "edited", "torn"],
)
def test_verify_looks_at_the_spec_too(dflash, options, plan, spoil, what):
    assert dflash("manifest", "verify", plan, "--json").code == 0
    spoil(plan / "spec.json")
    ran = dflash("manifest", "verify", plan, "--json")
    assert ran.code == 1
    [fault] = ran.document["faults"]
    assert fault["where"] == str(plan / "spec.json")
    assert fault["what"].startswith(what)


@pytest.mark.parametrize("name", ["epoch-001.parquet", "spec.json"])
def test_the_fix_mends_a_folder_that_plan_wrote(dflash, options, plan, name):
    whole = (plan / name).read_bytes()
    (plan / name).write_bytes(whole[:-1] + b"x")
    assert dflash("manifest", "verify", plan).code == 1
    assert dflash("plan", *options).code == 0
    assert (plan / name).read_bytes() == whole
    assert dflash("manifest", "verify", plan).code == 0


@pytest.mark.parametrize("action", ["show", "verify", "diff"])
def test_a_file_is_called_a_file(dflash, plan, action):
    path = plan / "spec.json"
    ran = dflash("manifest", action, *[path] * (2 if action == "diff" else 1), "--json")
    assert ran.code == 2
    assert ran.document["error"]["what"] == "this is a file"
    assert ran.document["error"]["where"] == str(path)


def test_no_thread_is_left_that_reading_an_epoch_started(plan):
    """A thread of Arrow's that lets go of Python's bytes while Python ends aborts the process, about once in fifty."""
    program = f"""
from pathlib import Path
import pyarrow.parquet
from dflash_pipeline.store.plans import load_epoch
threads = Path("/proc/self/task")
before = len(list(threads.iterdir()))
load_epoch(Path({str(plan)!r}), 0)
print(len(list(threads.iterdir())) - before)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n"
