"""What becomes of a snapshot's conversations, counted and written down while they pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dflash_pipeline.contracts.corpus import Thinking
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import UNSEEN, DroppedSample, Sample
from dflash_pipeline.ingest.tokenise import Outcome
from dflash_pipeline.store.token_rows import RowsWriter, TokenRow

MOST_LOST = 0.5
"""A larger share of conversations whose turns could not be found is the template's fault, not theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenisedRow:
    """One conversation on its way into the snapshot."""

    digest: bytes
    outcome: Outcome
    copies: int
    """How often its sample stands there, if it has one."""
    known: bool
    """Before it was tokenised: it is not looked at, or an earlier snapshot has it."""
    thinks: bool | None = None
    """Whether its answers hold a thought; None where there are no answers."""


class TokenCounts:
    """Samples and tokens with their copies; rows and drops by conversation."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __getitem__(self, what: str) -> int:
        return self._counts[what]

    def samples(self, rows: Iterable[TokenisedRow], written: RowsWriter) -> Iterator[Sample]:
        """The samples among the rows, as often as each stands in the snapshot; every row is written with its place."""
        for row in rows:
            outcome = row.outcome
            sample = outcome if isinstance(outcome, Sample) else None
            written.add(
                TokenRow(
                    conversation_id=outcome.conversation_id,
                    digest=row.digest,
                    sample_id=self["samples"] if sample else None,
                    reason=outcome.reason if isinstance(outcome, DroppedSample) else None,
                    num_tokens=sample.num_tokens if sample else 0,
                    num_cut=sample.num_cut if sample else 0,
                )
            )
            self._count(row)
            if sample is not None:
                yield from [sample] * row.copies

    def _count(self, row: TokenisedRow) -> None:
        outcome, copies, counts = row.outcome, row.copies, self._counts
        counts["rows"] += 1
        if isinstance(outcome, DroppedSample):
            counts["from earlier"] += row.known and outcome.reason not in UNSEEN
            counts[f"dropped {outcome.reason}"] += 1
        else:
            counts["from earlier"] += row.known
            counts["samples"] += copies
            counts[outcome.split] += copies
            counts["cut"] += copies * (outcome.num_cut > 0)
            counts["tokens"] += copies * outcome.num_tokens
            counts["supervised"] += copies * outcome.num_supervised
            counts["thinking"] += copies * (row.thinks is True)
            counts["not thinking"] += copies * (row.thinks is False)

    @property
    def dropped(self) -> tuple[tuple[str, int], ...]:
        """Reasons, and how many conversations each, in the order in which they were met."""
        return tuple((key.removeprefix("dropped "), n) for key, n in self._counts.items() if key.startswith("dropped "))

    @property
    def thinking(self) -> Thinking:
        """The mode of all samples that have one."""
        if self["thinking"] and self["not thinking"]:
            return "mixed"
        return "thinking" if self["thinking"] else "non-thinking" if self["not thinking"] else "unknown"

    @property
    def reasons(self) -> str:
        return ", ".join(f"{n} {reason}" for reason, n in self.dropped)

    def refuse_useless(self) -> None:
        """Raise `Refused` when the template lost most of the conversations, or when nothing is left to train on."""
        rows, lost = self["rows"], self["dropped spans_not_found"]
        seen = rows - sum(self[f"dropped {reason}"] for reason in UNSEEN)
        if lost > MOST_LOST * seen:
            raise Refused(
                f"in {lost:,} of {seen:,} conversations the assistant's words cannot be found in what the chat "
                "template prints",
                where="token_sequences",
                fix="give a template that prints each answer once, as `target.chat_template` in the recipe",
            )
        if not self["train"]:
            raise Refused(
                f"no training sample is left of {rows} conversations ({self.reasons or 'none dropped'})",
                where="token_sequences",
                fix="look at `dflash rejected` when there are none, else at data.max_length, the weights of "
                "data.sources and the chat template",
            )
