"""Steps whose loss or gradient is not finite change no weight; too many in a row end the run."""

from __future__ import annotations

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.training.step import StepResult

MOST_SKIPPED = 3
"""In a row; one more ends the run."""


def skipped_in_a_row(before: int, result: StepResult, *, where: str) -> int:
    """How many there are with this step. All ranks see the same numbers, so all fail in the same step."""
    skipped = 0 if result.applied else before + 1
    if skipped > MOST_SKIPPED:
        raise Failed(
            f"loss or gradient was not finite in {skipped} steps in a row (loss {result.loss}, gradient norm "
            f"{result.gradient_norm})",
            where=where,
            fix="start another run with a lower training.learning_rate, or without the samples of the step, which are "
            "with its spike in MLflow",
        )
    return skipped
