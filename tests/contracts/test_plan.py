"""Positions, steps and fractions over epochs of different length: the only place where epochs are added up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.plan import GlobalStep, Position, RunPlan
from tests.strategies import epoch_steps, met, must_meet, plan_of, summary_of

LENGTHS = [(4, 3, 5), (7, 8, 6), (1,)]


def walk(plan: RunPlan) -> list[Position]:
    """Every position of a run in order: the start of each epoch, then after each of its steps."""
    return [Position(epoch=e.epoch, step=step) for e in plan.epochs for step in range(e.num_steps + 1)]


@must_meet("one epoch", "several epochs", "epochs of different length")
@example([4, 3, 5])
@example([7, 8, 6])
@example([1])
@given(epoch_steps)
def test_the_fraction_rises_by_one_step_and_ends_at_exactly_one(steps):
    plan = plan_of(*steps)
    met("one epoch", when=len(steps) == 1)
    met("several epochs", when=len(steps) > 1)
    met("epochs of different length", when=len(set(steps)) > 1)
    done = [plan.global_step(at) for at in walk(plan)]
    for before, after, at in zip(done, done[1:], walk(plan)[1:], strict=False):
        assert after == before + (at.step > 0)
    fractions = [plan.step_fraction(at) for at in walk(plan)]
    assert fractions == [step / sum(steps) for step in done]
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


@given(epoch_steps)
def test_step_and_position_invert_each_other(steps):
    plan = plan_of(*steps)
    for done in range(plan.total_steps + 1):
        at = plan.position(GlobalStep(done))
        assert plan.global_step(at) == done
        # Only the run's end is an epoch's end; any other is the start of the next epoch.
        assert at.step < plan.epochs[at.epoch].num_steps or at == plan.end
    for at in walk(plan):
        found = plan.position(plan.global_step(at))
        at_an_end = at.step == plan.epochs[at.epoch].num_steps and at != plan.end
        assert found == (Position(epoch=at.epoch + 1, step=0) if at_an_end else at)


@pytest.mark.parametrize("steps", LENGTHS)
def test_totals(steps):
    plan = plan_of(*steps, cost=2.5)
    assert plan.num_epochs == len(steps)
    assert plan.total_steps == sum(steps)
    assert plan.total_cost == 2.5 * sum(steps)
    assert plan.end == Position(epoch=len(steps) - 1, step=steps[-1])
    assert plan.global_step(plan.end) == plan.total_steps


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(1e-3, 1e6)), min_size=1, max_size=6))
@example([(3, 0.1), (3, 0.1), (3, 0.7)])
def test_the_cost_fraction_rises_and_ends_at_exactly_one(epochs):
    summaries = tuple(summary_of(n, epoch=epoch, cost=cost) for epoch, (n, cost) in enumerate(epochs))
    plan = replace(plan_of(1), epochs=summaries)
    fractions = [plan.cost_fraction(at) for at in walk(plan)]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    for epoch, summary in enumerate(summaries):
        share = sum(e.cost for e in summaries[: epoch + 1]) / plan.total_cost
        assert plan.cost_fraction(Position(epoch=epoch, step=summary.num_steps)) == pytest.approx(share)


def test_a_dear_epoch_weighs_more_in_cost_than_in_steps():
    plan = replace(plan_of(1), epochs=(summary_of(2, epoch=0, cost=3.0), summary_of(2, epoch=1, cost=1.0)))
    middle = Position(epoch=1, step=0)
    assert (plan.step_fraction(middle), plan.cost_fraction(middle)) == (0.5, 0.75)
    assert plan.cost_fraction(Position(epoch=0, step=1)) == 0.375


@pytest.mark.parametrize("done", [-1, 13])
def test_steps_outside_the_run(done):
    with pytest.raises(ContractBroken, match=f"plan: global step {done} of 12; ask for a step between 0 and"):
        plan_of(4, 3, 5).position(GlobalStep(done))


@pytest.mark.parametrize(("epoch", "step"), [(3, 0), (0, 5), (1, 4)])
@pytest.mark.parametrize("ask", ["global_step", "step_fraction", "cost_fraction"])
def test_positions_outside_the_plan(epoch, step, ask):
    plan = plan_of(4, 3, 5)
    with pytest.raises(ContractBroken) as refused:
        getattr(plan, ask)(Position(epoch=epoch, step=step))
    assert str(refused.value) == (
        f"plan {plan.fingerprint}: epoch {epoch} step {step} is not in the plan; it has 3 epochs of [4, 3, 5] steps"
    )


@pytest.mark.parametrize(("epoch", "step"), [(-1, 0), (0, -1)])
def test_positions_count_from_zero(epoch, step):
    with pytest.raises(ContractBroken) as refused:
        Position(epoch=epoch, step=step)
    assert str(refused.value) == f"position: position epoch {epoch} step {step}; count epochs and steps from 0"


def test_positions_are_in_the_order_of_the_run():
    assert walk(plan_of(3, 1, 2)) == sorted(walk(plan_of(3, 1, 2)))


def test_epochs_stand_in_order_and_have_steps_and_a_cost():
    plan, needs = plan_of(2, 3), "an epoch has at least one step, and steps have a cost"
    for epochs, sentence in (
        ((), "plan: a plan without epochs; plan at least one epoch"),
        (plan.epochs[::-1], "plan: epoch 1 stands where epoch 0 belongs; seal epochs 0, 1, 2 … in order"),
        (
            (plan.epochs[0], plan.epochs[0]),
            "plan: epoch 0 stands where epoch 1 belongs; seal epochs 0, 1, 2 … in order",
        ),
        ((plan.epochs[0], replace(plan.epochs[1], num_steps=0)), f"plan epoch 1: 0 steps at cost 3.0; {needs}"),
        ((replace(plan.epochs[0], cost=0.0),), f"plan epoch 0: 2 steps at cost 0.0; {needs}"),
        ((replace(plan.epochs[0], cost=float("nan")),), f"plan epoch 0: 2 steps at cost nan; {needs}"),
    ):
        with pytest.raises(ContractBroken) as refused:
            replace(plan, epochs=epochs)
        assert str(refused.value) == sentence


def test_snapshot_rules_and_every_epoch_are_the_identity():
    plan = plan_of(2, 3)
    others = [
        replace(plan, snapshot="other"),
        replace(plan, spec=replace(plan.spec, seed=1)),
        replace(plan, epochs=plan.epochs[:1]),
        replace(plan, epochs=(plan.epochs[0], replace(plan.epochs[1], digest="other"))),
    ]
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert plan.fingerprint == plan_of(2, 3).fingerprint
