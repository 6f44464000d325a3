"""The folder through which a training and the process that measures beside it talk: `runs/<run>/early`.

    work.json               what to measure on, written before either starts
    ready                   the measuring process has its target and waits
    step_N.safetensors      weights after step N; there until they are measured, one at a time
    acceptance.jsonl        one line for each, appended before its weights go
    gone                    the measuring process has ended before its time

Nothing in it outlives an attempt: what was measured is in the run's event log.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pydantic import TypeAdapter
from torch import Tensor

from dflash_pipeline.store.records import load_record, save_record
from dflash_pipeline.training.early import Answer, EarlyWork

FOLDER = "early"
_WEIGHTS = re.compile(r"step_(\d+)\.safetensors")
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)


class Mailbox:
    """Paths and the few acts on them. Holds no state, so that either side may be killed at any point."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / FOLDER
        self.answers = self.folder / "acceptance.jsonl"
        self.log = self.folder / "log.txt"

    # The launcher's side.

    def open(self, work: EarlyWork) -> None:
        """Empty but for the work: whatever an attempt that was killed left behind is gone."""
        self.clear()
        self.folder.mkdir(parents=True)
        save_record(self.folder / "work.json", work)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def give_up(self) -> None:
        (self.folder / "gone").touch()

    # The first rank's side.

    @property
    def is_ready(self) -> bool:
        return (self.folder / "ready").exists()

    @property
    def is_given_up(self) -> bool:
        return (self.folder / "gone").exists()

    def put(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Write weights; they appear whole."""
        from safetensors.torch import save_file

        path = self._weights(step)
        fresh = path.with_name(f".{path.name}")
        save_file(tensors, fresh)
        fresh.rename(path)

    def put_file(self, step: int, weights: Path) -> None:
        """The same from a file of weights, which stays as it is: a second name for it, where that can be."""
        path = self._weights(step)
        try:
            path.hardlink_to(weights)
        except OSError:
            fresh = path.with_name(f".{path.name}")
            shutil.copyfile(weights, fresh)
            fresh.rename(path)

    def read_answers(self, offset: int) -> tuple[list[Answer], int]:
        """The whole lines from this byte on, and where the next begins. Costs a look at the size where none is new."""
        if not self.answers.exists() or self.answers.stat().st_size <= offset:
            return [], offset
        with self.answers.open("rb") as file:
            file.seek(offset)
            *lines, _torn = file.read().split(b"\n")
        return [_ANSWER.validate_json(line) for line in lines], offset + sum(len(line) + 1 for line in lines)

    # The measuring process's side.

    def work(self) -> EarlyWork:
        return load_record(self.folder / "work.json", EarlyWork)

    def announce(self) -> None:
        (self.folder / "ready").touch()

    def waiting(self) -> tuple[int, Path] | None:
        """The newest weights that wait to be measured, with their step."""
        found = [
            (int(match[1]), path)
            for path in self.folder.glob("step_*.safetensors")
            if (match := _WEIGHTS.fullmatch(path.name))
        ]
        return max(found, default=None)

    def reply(self, answer: Answer, weights: Path) -> None:
        """One line, in one write; then the weights go."""
        with self.answers.open("ab") as file:
            file.write(_ANSWER.dump_json(answer) + b"\n")
        weights.unlink()

    def _weights(self, step: int) -> Path:
        return self.folder / f"step_{step}.safetensors"
