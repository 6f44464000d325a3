"""Rules that can't be followed are never made into a spec."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from dflash_pipeline.contracts.batching import MOST_TOKENS, BatchingSpec, CostModel
from dflash_pipeline.contracts.errors import ContractBroken

SPEC = BatchingSpec(strategy="bucket", token_budget=100, slots_per_step=4, boundaries=(10, 20))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"strategy": "random"}, "batching.strategy: strategy 'random' is unknown; use one of sorted, shuffle, bucket"),
        ({"padding": "none"}, "batching.padding: padding 'none' is unknown; use one of batch-max, boundary"),
        ({"tail": "keep"}, "batching.tail: tail 'keep' is unknown; use one of fill, drop"),
        ({"overlong": "cut"}, "batching.overlong: overlong 'cut' is unknown; use one of drop, refuse"),
        ({"token_budget": 0}, "batching: token budget 0, slots per step 4, micro-batches per rank 1; each must be"),
        ({"token_budget": MOST_TOKENS + 1}, f"each must be at least 1 and at most {MOST_TOKENS}"),
        ({"slots_per_step": 0}, "slots per step 0"),
        ({"micro_batches_per_rank": 0}, "micro-batches per rank 0"),
        ({"micro_batches_per_rank": 3}, "batching.micro_batches_per_rank: 3 micro-batches per rank do not divide 4"),
        ({"boundaries": ()}, "batching.boundaries: boundaries []"),
        ({"boundaries": (0, 5)}, "batching.boundaries: boundaries [0, 5]"),
        ({"boundaries": (5, 5)}, "batching.boundaries: boundaries [5, 5]"),
        ({"boundaries": (5, 9, 7)}, "batching.boundaries: boundaries [5, 9, 7]"),
        ({"seed": -1}, "batching.seed: seed -1"),
        ({"seed": 2**63}, f"batching.seed: seed {2**63}"),
        (
            {"strategy": "sorted", "padding": "boundary"},
            "batching.padding: padding up to the boundary with strategy sorted, which has no buckets",
        ),
    ],
)
def test_refusals(change, where):
    with pytest.raises(ContractBroken) as refused:
        replace(SPEC, **change)
    assert where in str(refused.value)


def test_corners_that_are_fine():
    for change in (
        {"token_budget": 1},
        {"token_budget": MOST_TOKENS},
        {"slots_per_step": 1},
        {"micro_batches_per_rank": 4},
        {"boundaries": (1,)},
        {"seed": 2**63 - 1},
        {"padding": "boundary"},
    ):
        assert replace(SPEC, **change) != SPEC


@pytest.mark.parametrize(
    "wrong",
    [
        {"quadratic_length": 0.0},
        {"quadratic_length": -1.0},
        {"quadratic_length": float("inf")},
        {"quadratic_length": float("nan")},
        {"anchor_cost": -0.5},
        {"anchor_cost": float("inf")},
        {"anchor_cost": float("nan")},
    ],
)
def test_costs_are_finite_and_positive(wrong):
    with pytest.raises(ContractBroken, match="cost model"):
        CostModel(**wrong)


def test_whole_numbers_and_floats_are_one_cost():
    whole, real = CostModel(quadratic_length=24576, anchor_cost=1), CostModel(quadratic_length=24576.0, anchor_cost=1.0)
    assert replace(SPEC, cost=whole).fingerprint == replace(SPEC, cost=real).fingerprint
    assert type(whole.quadratic_length) is type(whole.anchor_cost) is float


def test_every_rule_is_part_of_the_identity():
    changes = {
        "strategy": "shuffle",
        "token_budget": 101,
        "slots_per_step": 8,
        "micro_batches_per_rank": 2,
        "boundaries": (10, 21),
        "padding": "boundary",
        "cost": CostModel(anchor_cost=0.5),
        "seed": 1,
        "tail": "drop",
        "overlong": "drop",
    }
    assert set(changes) == {field.name for field in fields(BatchingSpec)}
    found = {replace(SPEC, **{name: value}).fingerprint for name, value in changes.items()}
    assert len(found | {SPEC.fingerprint}) == len(changes) + 1


def test_the_version_of_the_order_is_part_of_the_identity(monkeypatch):
    before = SPEC.fingerprint
    monkeypatch.setattr("dflash_pipeline.contracts.batching.ORDER_VERSION", 10_000)
    assert SPEC.fingerprint != before
