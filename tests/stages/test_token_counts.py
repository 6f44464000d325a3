"""Counts of a snapshot: rows and drops by conversation, samples and tokens with their copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import DroppedSample, DropReason, Sample
from dflash_pipeline.stages.token_counts import TokenCounts, TokenisedRow
from dflash_pipeline.store.token_rows import TokenRows, write_rows


def kept(name: str, *, copies: int = 1, split: Any = "train", known: bool = False) -> TokenisedRow:
    ids = np.arange(6, dtype=np.int32)
    sample = Sample(conversation_id=name, split=split, input_ids=ids, spans=((1, 3),), num_cut=2)
    return TokenisedRow(digest=name.encode().ljust(32), outcome=sample, copies=copies, known=known)


def dropped(name: str, reason: DropReason, *, known: bool = True) -> TokenisedRow:
    outcome = DroppedSample(conversation_id=name, reason=reason)
    return TokenisedRow(digest=name.encode().ljust(32), outcome=outcome, copies=0, known=known)


@pytest.fixture
def count(tmp_path):
    def counted(*rows: TokenisedRow) -> tuple[TokenCounts, list[str], list[tuple[str, int | None]]]:
        counts = TokenCounts()
        with write_rows(tmp_path) as written:
            samples = [sample.conversation_id for sample in counts.samples(rows, written)]
        table = TokenRows(tmp_path).table().to_pylist()
        return counts, samples, [(row["conversation_id"], row["sample_id"]) for row in table]

    return counted


def test_copies_follow_each_other_and_a_row_has_the_first(count):
    counts, samples, rows = count(
        kept("a", copies=2), dropped("b", "weight"), kept("c", copies=3), kept("d", split="validation")
    )
    assert samples == ["a", "a", "c", "c", "c", "d"]
    assert rows == [("a", 0), ("b", None), ("c", 2), ("d", 5)]
    names = ("rows", "samples", "train", "validation", "tokens", "supervised", "cut")
    assert [counts[name] for name in names] == [4, 6, 5, 1, 36, 12, 6]
    assert counts.dropped == (("weight", 1),)


def test_what_is_not_looked_at_is_not_known_from_earlier(count):
    rows = [kept("a", copies=2, known=True), kept("b"), dropped("c", "too_long"), dropped("d", "too_long", known=False)]
    counts, _, _ = count(*rows, dropped("e", "weight"), dropped("f", "excluded"))
    assert counts["from earlier"] == 2
    assert counts.reasons == "2 too_long, 1 weight, 1 excluded"


def test_a_template_is_judged_by_what_it_rendered(count):
    rows = [kept("a", copies=9), dropped("b", "spans_not_found"), *(dropped(name, "weight") for name in "cdefg")]
    count(*rows)[0].refuse_useless()
    counts, _, _ = count(*rows, dropped("h", "spans_not_found"))
    with pytest.raises(Refused, match="in 2 of 3 conversations"):
        counts.refuse_useless()


def test_nothing_to_train_on_is_refused_with_the_reasons(count):
    counts, _, _ = count(dropped("a", "weight"), dropped("b", "too_long"), kept("c", split="validation"))
    with pytest.raises(Refused, match=r"no training sample is left of 3 conversations \(1 weight, 1 too_long\)"):
        counts.refuse_useless()
    with pytest.raises(Refused, match=r"of 1 conversations \(none dropped\)"):
        count(kept("c", split="validation"))[0].refuse_useless()
