"""Who becomes champion, by rule; and who reigns, by what was decided."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.promotion import (
    Contender,
    Difference,
    PromotionDecision,
    PromotionRules,
    SourceChange,
    Standing,
    judge_challenger,
    judge_first,
    reign,
    taken_back,
)

RULES = PromotionRules(floor=None, most_source_loss=0.05)


def contender(name: str) -> Contender:
    return Contender(run=name, export=name, weights=name, target="t", snapshot="s", plan="p", mlflow_run_id=None)


def standing(mean: float, low: float, high: float) -> Standing:
    return Standing(mean=mean, interval=(low, high), sources=())


def change(before: float, after: float, source: str = "chat") -> SourceChange:
    return SourceChange(source=source, num_prompts=4, before=before, after=after)


def difference(low: float, *sources: SourceChange) -> Difference:
    return Difference(mean=low + 0.1, interval=(low, low + 0.2), sources=sources)


def decided(action, name: str, champion: str | None) -> PromotionDecision:
    return PromotionDecision(
        recipe="r",
        action=action,
        reason="so",
        contender=contender(name),
        champion=None if champion is None else contender(champion),
        by_hand=action == "rolled back",
        standing=None,
        difference=None,
        basis="b",
        unix_seconds=0.0,
    )


@pytest.mark.parametrize(
    ("low", "promote"), [(1.21, True), (1.2, False), (1.0, False)], ids=["above", "at the end", "below"]
)
def test_a_first_champion_is_certainly_better_than_the_untrained_drafter(low, promote):
    found = judge_first(standing(1.5, low, 1.8), standing(1.1, 1.0, 1.2), RULES)
    assert found.promote is promote
    assert "1.200, the end of the interval of the untrained drafter" in found.reason


@pytest.mark.parametrize(("mean", "promote"), [(2.01, True), (2.0, False)])
def test_a_floor_that_a_person_set_is_compared_with_the_mean(mean, promote):
    rules = replace(RULES, floor=2.0)
    found = judge_first(standing(mean, 1.0, 3.0), standing(1.0, 1.0, 1.0), rules)
    assert found.promote is promote
    assert "2.000, promotion.floor" in found.reason


@pytest.mark.parametrize(("low", "promote"), [(0.01, True), (0.0, False), (-0.3, False)])
def test_a_challenger_wins_only_beyond_the_interval(low, promote):
    found = judge_challenger(difference(low, change(2.0, 2.0)), RULES)
    assert found.promote is promote
    assert f"{low:+.3f}" in found.reason


@pytest.mark.parametrize(("after", "promote"), [(1.91, True), (1.89, False)], ids=["less", "more"])
def test_one_losing_source_keeps_a_winner_out(after, promote):
    found = judge_challenger(difference(0.5, change(2.0, 3.0), change(2.0, after, "code")), RULES)
    assert found.promote is promote
    assert ("code loses 5.5%" in found.reason) is not promote


def test_the_worst_of_several_losing_sources_is_named():
    found = judge_challenger(difference(0.5, change(2.0, 1.8, "a"), change(2.0, 1.5, "b")), RULES)
    assert "b loses 25.0%" in found.reason


@given(st.floats(-1, 1), st.lists(st.tuples(st.floats(1, 16), st.floats(1, 16)), max_size=5), st.floats(0, 0.9))
def test_a_challenger_wins_exactly_when_both_rules_hold(low, sources, most):
    changes = [change(before, after, str(i)) for i, (before, after) in enumerate(sources)]
    found = judge_challenger(difference(low, *changes), PromotionRules(floor=None, most_source_loss=most))
    assert found.promote == (low > 0 and all((before - after) / before <= most for before, after in sources))


def test_promotions_and_rollbacks_make_a_line():
    line = [decided("promoted", "a", "a"), decided("kept", "b", "a"), decided("promoted", "c", "c")]
    assert [c.run for c in reign(line)] == ["a", "c"]
    back = [*line, decided("rolled back", "c", "a")]
    assert [c.run for c in reign(back)] == ["a"]
    assert [c.run for c in reign([*back, decided("promoted", "d", "d")])] == ["a", "d"]
    assert reign([]) == ()


@given(st.lists(st.sampled_from(["promote", "keep", "back"]), max_size=12))
def test_the_line_is_a_stack(acts):
    decisions, stack = [], []
    for number, act in enumerate(acts):
        name = f"run{number}"
        if act == "promote":
            stack.append(name)
            decisions.append(decided("promoted", name, name))
        elif act == "keep":
            decisions.append(decided("kept", name, stack[-1] if stack else None))
        elif len(stack) > 1:
            decisions.append(decided("rolled back", stack.pop(), stack[-1]))
    assert [c.run for c in reign(decisions)] == stack


def test_what_was_taken_back_stays_so_until_a_person_promotes_it():
    decisions = [decided("promoted", "a", "a"), decided("promoted", "b", "b"), decided("rolled back", "b", "a")]
    assert taken_back(decisions, "b")
    assert not taken_back(decisions, "a")
    assert taken_back([*decisions, decided("kept", "b", "a")], "b")
    assert not taken_back([*decisions, decided("promoted", "b", "b")], "b")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: decided("promoted", "a", "b"),
        lambda: replace(decided("kept", "a", None), reason=""),
        lambda: PromotionRules(floor=None, most_source_loss=1.0),
        lambda: standing(0.5, 1.0, 2.0),
        lambda: standing(2.0, 3.0, 2.0),
    ],
)
def test_records_that_would_be_false_are_refused(wrong):
    with pytest.raises(ContractBroken):
        wrong()
