"""A sample's supervised spans lie in order inside it; what gives no sample has a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.sample import DroppedSample, Sample

SAMPLE = Sample(conversation_id="c", split="train", input_ids=np.arange(6, dtype=np.int32), spans=((1, 3), (4, 6)))


def test_it_counts_its_tokens():
    assert (SAMPLE.num_tokens, SAMPLE.num_supervised) == (6, 4)
    touching = replace(SAMPLE, spans=((0, 3), (3, 6)), split="validation", num_cut=1)
    assert (touching.num_supervised, touching.num_cut) == (6, 1)


def test_what_gives_no_sample_has_a_reason():
    assert DroppedSample(conversation_id="c", reason="too_long").reason == "too_long"


PLACE = "sample of conversation 'c'"
SPANS = "give ascending spans of at least one token that lie inside the sample"
REASONS = (
    "use one of excluded, weight, template_error, spans_not_found, control_text, unknown_token, too_long, "
    "no_supervised_tokens, too_few_supervised_tokens"
)
SENTENCES: list[tuple[Callable[[], object], str, str, str]] = [
    (lambda: replace(SAMPLE, split="test"), PLACE, "split 'test'", "use train or validation"),
    (
        lambda: replace(SAMPLE, input_ids=np.arange(6)),
        PLACE,
        "token ids of type int64 in 1 dimensions",
        "give one row of int32",
    ),
    (
        lambda: replace(SAMPLE, input_ids=np.zeros((2, 6), np.int32)),
        PLACE,
        "token ids of type int32 in 2 dimensions",
        "give one row of int32",
    ),
    (lambda: replace(SAMPLE, num_cut=-1), PLACE, "-1 tokens cut off", "count from 0"),
    (lambda: replace(SAMPLE, spans=((-1, 2),)), PLACE, "supervised span -1-2 after 0, of 6 tokens", SPANS),
    (lambda: replace(SAMPLE, spans=((2, 2),)), PLACE, "supervised span 2-2 after 0, of 6 tokens", SPANS),
    (lambda: replace(SAMPLE, spans=((0, 7),)), PLACE, "supervised span 0-7 after 0, of 6 tokens", SPANS),
    (lambda: replace(SAMPLE, spans=((0, 3), (2, 4))), PLACE, "supervised span 2-4 after 3, of 6 tokens", SPANS),
    (
        lambda: replace(SAMPLE, spans=()),
        PLACE,
        "no supervised token",
        "make it a DroppedSample: training would learn nothing from it",
    ),
    (
        lambda: DroppedSample(conversation_id="c", reason="odd"),  # type: ignore[arg-type]
        "dropped conversation 'c'",
        "reason 'odd'",
        REASONS,
    ),
]


@pytest.mark.parametrize(("make", "where", "what", "fix"), SENTENCES, ids=[row[2] for row in SENTENCES])
def test_a_broken_record_says_where_what_and_what_to_do(make, where, what, fix):
    with pytest.raises(ContractBroken) as broken:
        make()
    assert (broken.value.where, broken.value.what, broken.value.fix) == (where, what, fix)
