"""What stages hand to the next stage: small records that name what was made, never the data itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.run import TimeSpent

NoAnswer = Literal["empty", "content_filter", "refused", "cut_in_thought", "rejected", "malformed", "no_reply"]
"""Why a prompt has no answer: what came held no text; the server's filter or the model's own refusal took its place; it
reached its token limit while it was still thinking; the server took the request for wrong; every try brought something
that is no answer, or nothing at all."""
FAILURES: tuple[NoAnswer, ...] = ("rejected", "malformed", "no_reply")
"""Reasons that say nothing about the target's answer: such a prompt is asked again by the next run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What came of one prompt: an answer, or the reason why there is none."""

    text: str = ""
    complete: bool = False
    """The target ended it itself, within the token limit."""
    reason: NoAnswer | None = None

    def __post_init__(self) -> None:
        if self.reason is not None and (self.reason not in get_args(NoAnswer) or self.text or self.complete):
            raise ContractBroken(
                f"reason {self.reason!r} with {len(self.text)} characters, complete {self.complete}",
                where="reply",
                fix="give an answer, or one of the reasons of contracts/results.py",
            )


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
    left_out: tuple[tuple[NoAnswer, int], ...] = ()
    """All conversations left out because a turn has no answer, by reason; those of empty answers among them."""


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
    """Fewer than `total_steps` when the recipe limits them, or the run was stopped early."""
    num_ranks: int
    first_loss: float
    last_loss: float
    num_spikes: int
    useful_tokens_per_second: float
    padded_tokens_per_second: float
    mlflow_run_id: str | None
    stopped_early: str | None = None
    """The measurement that ended the run, in one sentence."""
    spent: TimeSpent | None = None
    """None for runs of before it was kept."""
    warm_start: str | None = None
    """The run with whose weights it began; None for one from scratch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedDrafter:
    """Where the drafter lies in the format that servers read."""

    run: str
    export_dir: str
    target_dir: str
    num_tensors: int
    speculators_dir: str | None = None
    """The same weights in speculators' form, if the recipe asks for it."""
