"""What stages hand to the next stage: small records that name what was made, never the data itself."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_pipeline.contracts.errors import ContractBroken


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSet:
    """Whose answers the samples hold."""

    fingerprint: str
    """`source` for the answers of the files, otherwise the identity of target and settings."""
    ingestion: str
    num_answers: int
    num_cut: int
    """Answers that reached the token limit: kept, without an end marker."""
    num_empty: int
    """Answers without text: their conversations are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketBoundaries:
    """The optimised boundaries of one snapshot."""

    snapshot: str
    boundaries: tuple[int, ...]
    padding_efficiency: float
    """Real tokens / tokens if every sample were padded up to its boundary."""

    def __post_init__(self) -> None:
        if not 0 < self.padding_efficiency <= 1:
            raise ContractBroken(
                f"padding efficiency {self.padding_efficiency}",
                where=f"boundaries of snapshot {self.snapshot}",
                fix="boundaries hold the longest sample; recompute them for this snapshot",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedDrafter:
    """A run that ended in good order, from its event log: steps of superseded attempts are left out."""

    run: str
    run_dir: str
    plan: str
    checkpoint: str
    total_steps: int
    steps_done: int
    """Fewer than `total_steps` when the recipe limits them."""
    num_ranks: int
    first_loss: float
    last_loss: float
    num_spikes: int
    useful_tokens_per_second: float
    padded_tokens_per_second: float
    mlflow_run_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedDrafter:
    """Where the drafter lies in the format that servers read."""

    run: str
    export_dir: str
    target_dir: str
    num_tensors: int
