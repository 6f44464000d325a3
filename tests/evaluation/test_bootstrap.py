"""Intervals over prompts: as wide as another draw of prompts would differ, always the same, and paired by prompt."""

from dataclasses import replace

import numpy as np
import pytest

from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.evaluation.acceptance import PromptAcceptance, combine_results
from dflash_pipeline.evaluation.bootstrap import mean_interval, paired_interval

RANDOM = np.random.default_rng(3)
SKEWED = (1 + RANDOM.exponential(1.5, 300)).tolist()


def test_it_is_as_a_bootstrap_with_another_generator():
    draws = RANDOM.choice(SKEWED, (20_000, len(SKEWED))).mean(axis=1)
    spread = np.std(draws)
    for level in (0.5, 0.95):
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
        assert mean_interval(SKEWED, level=level) == pytest.approx((low, high), abs=0.13 * spread)
    assert mean_interval(SKEWED) == mean_interval(SKEWED)


def test_it_holds_the_true_mean_about_as_often_as_it_says():
    held = 0
    for _ in range(150):
        low, high = mean_interval((1 + RANDOM.exponential(1.5, 40)).tolist())
        held += low < 2.5 < high
    assert 150 * 0.95 - 14 < held <= 150  # five deviations


def test_values_that_are_all_the_same_leave_no_doubt():
    assert mean_interval([2.5, 2.5, 2.5]) == (2.5, 2.5)
    with pytest.raises(ContractBroken, match="1 values"):
        mean_interval([2.5])


def prompt(number: int, *histogram: int) -> PromptAcceptance:
    tokens = 1 + sum(length * rounds for length, rounds in enumerate(histogram, start=1))
    return PromptAcceptance(
        source="",
        prompt=str(number),
        prompt_tokens=3,
        num_tokens=tokens,
        histogram=histogram,
        cut_tokens=0,
        lossless=True,
    )


def test_what_prompts_share_falls_out_of_a_paired_interval():
    before = combine_results([prompt(n, 40 - n, n, 0) for n in range(40)])
    after = combine_results([prompt(n, 38 - n, n, 2) for n in range(38)] + [prompt(n, 0, 40, 0) for n in (38, 39)])
    low, high = paired_interval(before, after)
    differences = [a.mean - b.mean for a, b in zip(after.prompts, before.prompts, strict=True)]
    assert low < np.mean(differences) < high
    assert high - low < 0.1 * (before.interval[1] - before.interval[0])
    assert paired_interval(after, before) == pytest.approx((-high, -low), abs=1e-9)


def test_only_reports_of_the_same_prompts_are_paired():
    one, other = (
        combine_results([prompt(1, 2, 1), prompt(2, 1, 1)]),
        combine_results([prompt(2, 2, 1), prompt(1, 1, 1)]),
    )
    with pytest.raises(ContractBroken, match="other prompts"):
        paired_interval(one, other)
    with pytest.raises(ContractBroken, match="other prompts"):
        paired_interval(one, combine_results([prompt(1, 2, 1)]))


def test_a_prompt_without_a_round_in_one_of_them_says_nothing():
    whole = combine_results([prompt(1, 2, 1), prompt(2, 1, 1), prompt(3, 1, 3)])
    silent = replace(prompt(3, 0, 0), num_tokens=1)
    assert paired_interval(whole, combine_results([*whole.prompts[:2], silent])) == (0.0, 0.0)
    assert paired_interval(combine_results([prompt(1, 2, 1)]), combine_results([prompt(1, 2, 1)])) == (-1.0, 1.0)
