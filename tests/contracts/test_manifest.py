"""Every way an epoch can be wrong is refused when it is made, and the sentence says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.manifest import COLUMNS, EpochManifest
from tests.strategies import manifest_of, met, must_meet

Fields = dict[str, Any]


def ints(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def two_steps_of_two() -> Fields:
    """Samples 0-4 of 10, 8, 6, 4, 2 tokens: batches (0, 1), (2), (3, 4), and a filler that copies (2)."""
    return {
        "epoch": 3,
        "num_corpus_samples": 6,
        "slots_per_step": 2,
        "token_budget": 20,
        "sample_ids": ints(0, 1, 2, 3, 4, 2),
        "offsets": ints(0, 2, 3, 5, 6),
        "padded_length": ints([10, 6], [4, 6]),
        "num_tokens": ints([18, 6], [6, 6]),
        "supervised_tokens": ints([9, 3], [3, 3]),
        "cost": np.array([[20.0, 6.0], [8.0, 6.0]]),
        "filler": np.array([[False, False], [False, True]]),
        "dropped": ints(5),
    }


def change(name: str, value: Any) -> Callable[[Fields], None]:
    return lambda fields: fields.update({name: value})


def put(name: str, at: tuple[int, ...], value: Any) -> Callable[[Fields], None]:
    def apply(fields: Fields) -> None:
        fields[name] = fields[name].copy()
        fields[name][at] = value

    return apply


def all_fillers(fields: Fields) -> None:
    fields["filler"] = np.array([[False, False], [True, True]])
    fields["dropped"] = ints(3, 4, 5)
    fields["sample_ids"] = ints(0, 1, 2, 0, 1, 2)
    fields["num_tokens"] = ints([18, 6], [6, 6])


def filler_of_a_dropped_sample(fields: Fields) -> None:
    fields["sample_ids"] = ints(0, 1, 2, 3, 4, 5)


def dropped_of_which_one_twice(fields: Fields) -> None:
    fields["num_corpus_samples"], fields["dropped"] = 7, ints(5, 6, 6)


REFUSALS = {
    "epoch below 0": (change("epoch", -1), "epoch -1: 6 samples in steps of 2 slots"),
    "no slots": (change("slots_per_step", 0), "epoch 3: 6 samples in steps of 0 slots"),
    "no samples": (change("num_corpus_samples", 0), "epoch 3: 0 samples in steps of 2 slots"),
    "other slots": (change("slots_per_step", 3), "epoch 3: 4 micro-batches in the shape (2, 2) for 3 slots"),
    "flat lengths": (change("padded_length", ints(10, 6, 4, 6)), "epoch 3: 4 micro-batches in the shape (4,)"),
    "no step": (change("padded_length", np.zeros((0, 2), np.int64)), "epoch 3: 4 micro-batches in the shape (0, 2)"),
    "other shape": (change("cost", np.ones((2, 3))), "epoch 3: column cost has another shape than padded_length"),
    "type": (change("dropped", np.array([5.0])), "epoch 3: column dropped is of type float64; give int64 values"),
    "a batch too few": (
        change("offsets", ints(0, 2, 3, 6)),
        "epoch 3: offsets describe 3 micro-batches, the columns 4",
    ),
    "no offsets": (change("offsets", ints()), "epoch 3: offsets describe -1 micro-batches, the columns 4"),
    "ids not flat": (change("sample_ids", ints([0, 1, 2, 3, 4, 2])), "epoch 3: offsets describe 4 micro-batches"),
    "dropped not flat": (change("dropped", ints([5])), "epoch 3: offsets describe 4 micro-batches"),
    "late start": (put("offsets", (0,), 1), "epoch 3: offsets run from 1 to 6 over 6 sample ids"),
    "early end": (put("offsets", (4,), 5), "epoch 3: offsets run from 0 to 5 over 6 sample ids"),
    "empty": (change("offsets", ints(0, 2, 3, 3, 6)), "epoch 3 step 1 slot 0: the micro-batch is empty"),
    "backwards": (change("offsets", ints(0, 3, 2, 5, 6)), "epoch 3 step 0 slot 1: the micro-batch is empty"),
    "budget": (
        put("padded_length", (0, 0), 11),
        "epoch 3 step 0 slot 0: 2 rows of 11 tokens exceed the token budget of 20",
    ),
    "more tokens than places": (put("num_tokens", (1, 0), 9), "epoch 3 step 1 slot 0: 9 real tokens in 2 samples"),
    "fewer tokens than samples": (put("num_tokens", (1, 0), 1), "epoch 3 step 1 slot 0: 1 real tokens in 2 samples"),
    "supervised": (put("supervised_tokens", (0, 1), 7), "epoch 3 step 0 slot 1: 7 supervised of 6 tokens"),
    "negative supervised": (put("supervised_tokens", (0, 1), -1), "epoch 3 step 0 slot 1: -1 supervised of 6"),
    "fillers only": (all_fillers, "epoch 3 step 1 slot 0: the step holds fillers only"),
    "no cost": (put("cost", (1, 1), 0.0), "epoch 3 step 1 slot 1: cost 0.0"),
    "endless cost": (put("cost", (0, 1), np.inf), "epoch 3 step 0 slot 1: cost inf"),
    "cost not a number": (put("cost", (1, 0), np.nan), "epoch 3 step 1 slot 0: cost nan"),
    "unknown sample": (put("sample_ids", (3,), 6), "epoch 3 step 1 slot 0: sample 6 is not in the corpus"),
    "negative sample": (put("sample_ids", (2,), -1), "epoch 3 step 0 slot 1: sample -1 is not in the corpus"),
    "unknown dropped": (change("dropped", ints(6)), "epoch 3: a dropped sample is not in the corpus"),
    "negative dropped": (change("dropped", ints(-1)), "epoch 3: a dropped sample is not in the corpus"),
    "twice": (put("sample_ids", (4,), 1), "epoch 3 step 1 slot 0: sample 1 is scheduled 2 times"),
    "missing": (change("dropped", ints()), "epoch 3: sample 5 is neither scheduled nor dropped (1 such samples)"),
    "dropped twice": (change("dropped", ints(5, 5)), "epoch 3: sample 5 is dropped twice or also scheduled"),
    "dropped and scheduled": (change("dropped", ints(4, 5)), "epoch 3: sample 4 is dropped twice or also scheduled"),
    "of the dropped one twice": (
        dropped_of_which_one_twice,
        "epoch 3: sample 6 is dropped twice or also scheduled (1 su",
    ),
    "filler of nothing": (filler_of_a_dropped_sample, "epoch 3 step 1 slot 1: a filler copies a sample"),
}


WHAT_TO_DO = {
    "an epoch is counted from 0 and has samples and slots": ("epoch below 0", "no slots", "no samples"),
    "every rank needs its share of each step, or the collectives hang": ("other slots", "flat lengths", "no step"),
    "build all columns together": ("other shape",),
    "give int64 values": ("type",),
    "build offsets, ids and dropped as flat columns from the batch sizes": (
        "a batch too few",
        "no offsets",
        "ids not flat",
        "dropped not flat",
    ),
    "build offsets from the batch sizes": ("late start", "early end"),
    "put a sample or a filler in it": ("empty", "backwards"),
    "pack fewer samples, or raise the budget": ("budget",),
    "count real tokens within the padded ones, at least one a sample": (
        "more tokens than places",
        "fewer tokens than samples",
    ),
    "count supervised tokens among the real ones": ("supervised", "negative supervised"),
    "leave it out: it has no loss to normalise": ("fillers only",),
    "a cost is finite and above 0": ("no cost", "endless cost", "cost not a number"),
    "plan from this snapshot": ("unknown sample", "negative sample", "unknown dropped", "negative dropped"),
    "schedule each sample once": ("twice",),
    "scheduled and dropped must add up to the corpus": (
        "missing",
        "dropped twice",
        "dropped and scheduled",
        "of the dropped one twice",
    ),
    "copy a scheduled one": ("filler of nothing",),
}
"""Sentences, and the refusals that end with them."""


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_place(name):
    spoil, sentence = REFUSALS[name]
    fields = two_steps_of_two()
    spoil(fields)
    with pytest.raises(ContractBroken) as refused:
        EpochManifest(**fields)
    assert str(refused.value).startswith(sentence)
    assert name in WHAT_TO_DO[refused.value.fix]


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_has_its_type(name):
    fields = two_steps_of_two()
    fields[name] = fields[name].astype(np.float32)
    with pytest.raises(ContractBroken, match=f"epoch 3: column {name} is of type float32"):
        EpochManifest(**fields)


def test_what_it_says_of_itself():
    manifest = EpochManifest(**two_steps_of_two())
    assert (manifest.num_steps, manifest.num_samples) == (2, 5)
    assert manifest.batch_sizes.tolist() == [[2, 1], [2, 1]]
    assert manifest.padded_tokens.tolist() == [[20, 6], [8, 6]]
    assert manifest.step_costs.tolist() == [26.0, 8.0]


def test_its_summary_leaves_fillers_out():
    manifest = EpochManifest(**two_steps_of_two())
    summary = manifest.summary()
    assert (summary.epoch, summary.num_steps, summary.num_micro_batches, summary.num_fillers) == (3, 2, 3, 1)
    assert (summary.num_samples, summary.num_dropped) == (5, 1)
    assert (summary.real_tokens, summary.padded_tokens, summary.supervised_tokens) == (30, 34, 15)
    assert (summary.cost, summary.padding_efficiency, summary.digest) == (34.0, 30 / 34, manifest.digest())


def test_micro_batches_are_found_by_step_and_slot():
    manifest = EpochManifest(**two_steps_of_two())
    batch = manifest.micro_batch(1, 1)
    assert (batch.epoch, batch.step, batch.slot, batch.sample_ids.tolist()) == (3, 1, 1, [2])
    assert (batch.padded_length, batch.num_tokens, batch.supervised_tokens) == (6, 6, 3)
    assert (batch.cost, batch.filler, batch.padded_tokens) == (6.0, True, 6)
    assert [b.sample_ids.tolist() for b in manifest.step_batches(0)] == [[0, 1], [2]]
    assert not manifest.micro_batch(1, 0).filler


@pytest.mark.parametrize(("step", "slot"), [(2, 0), (0, 2), (-1, 0), (0, -1)])
def test_no_such_micro_batch(step, slot):
    with pytest.raises(ContractBroken, match=f"epoch 3: no step {step} slot {slot} in 2 steps of 2 slots"):
        EpochManifest(**two_steps_of_two()).micro_batch(step, slot)


def test_every_field_counts_for_the_digest():
    changes = [
        change("epoch", 4),
        change("token_budget", 21),
        put("cost", (0, 0), 20.5),
        put("supervised_tokens", (0, 0), 8),
        put("num_tokens", (0, 0), 17),
        put("padded_length", (0, 1), 7),
        change("sample_ids", ints(1, 0, 2, 3, 4, 2)),
        change("dropped", ints()),
    ]
    found = {EpochManifest(**two_steps_of_two()).digest()}
    for spoil in changes:
        fields = two_steps_of_two()
        spoil(fields)
        fields["num_corpus_samples"] = 5 + fields["dropped"].size
        found.add(EpochManifest(**fields).digest())
    assert len(found) == len(changes) + 1


DIGESTS = {"rows": "0a021099eff385a3", "documents": "33ccebf00943af8a"}
"""First digits. Plans on disk are told by them: where one changes, no plan made before is found again."""


@pytest.mark.parametrize(("layout", "padded"), [("rows", [[36, 6], [12, 6]]), ("documents", [[18, 6], [6, 6]])])
def test_the_layout_says_how_many_rows_a_micro_batch_has_and_counts_for_the_digest(layout, padded):
    fields = two_steps_of_two() | {"token_budget": 36, "padded_length": ints([18, 6], [6, 6]), "layout": layout}
    manifest = EpochManifest(**fields)
    assert manifest.padded_tokens.tolist() == padded
    assert manifest.micro_batch(0, 0).padded_tokens == padded[0][0]
    assert manifest.micro_batch(0, 0).layout == layout
    assert manifest.digest()[:16] == DIGESTS[layout]


def test_what_is_just_allowed():
    # One step of one slot, one sample of one token; and a micro-batch in which nothing is supervised.
    assert manifest_of(1).num_steps == 1
    fields = two_steps_of_two()
    put("supervised_tokens", (0, 1), 0)(fields)
    assert EpochManifest(**fields).summary().supervised_tokens == 12


def test_where_a_batch_ends_counts_for_the_digest():
    found = set()
    for cut in (1, 2):
        fields = two_steps_of_two()
        fields["offsets"] = ints(0, cut, 3, 5, 6)
        fields["padded_length"] = ints([10, 10], [4, 6])
        fields["num_tokens"] = ints([10, 10], [6, 6])
        found.add(EpochManifest(**fields).digest())
    assert len(found) == 2


@must_meet("dropped samples", "another order")
@example([5, 4, 3, 2, 1, 0], 2)
@given(st.permutations(range(6)), st.integers(0, 4))
def test_any_permutation_with_any_dropped_is_whole(ids, num_dropped):
    met("dropped samples", when=num_dropped > 0)
    met("another order", when=list(ids) != sorted(ids))
    kept, dropped = ids[num_dropped:], ids[:num_dropped]
    one = np.ones((len(kept), 1), dtype=np.int64)
    manifest = EpochManifest(
        epoch=0,
        num_corpus_samples=6,
        slots_per_step=1,
        token_budget=1,
        sample_ids=ints(*kept),
        offsets=np.arange(len(kept) + 1),
        padded_length=one,
        num_tokens=one,
        supervised_tokens=one,
        cost=one.astype(np.float64),
        filler=np.zeros(one.shape, np.bool_),
        dropped=ints(*dropped),
    )
    assert (manifest.num_steps, manifest.num_samples) == (len(kept), len(kept))
    assert manifest.summary().num_dropped == num_dropped


def test_two_manifests_are_two_things():
    assert manifest_of(2) != manifest_of(2)
    assert manifest_of(2).digest() == manifest_of(2).digest()
