"""Acceptance figures by hand: means over prompts, over rounds, and by position."""

import numpy as np
import pytest

from dflash_pipeline.contracts.errors import ContractBroken, Failed
from dflash_pipeline.evaluation.acceptance import PromptResult, combine_results, measure_acceptance, measure_prompt
from tests.tiny_models import strong_drafter, tiny_config, tiny_target


def result(*histogram: int, lossless: bool = True) -> PromptResult:
    return PromptResult(num_tokens=9, histogram=histogram, lossless=lossless, seconds=0.5)


def test_figures_by_hand():
    report = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0)])
    assert report.mean == pytest.approx((2.5 + 1.25) / 2)
    assert report.pooled == pytest.approx(10 / 6)
    assert report.histogram == (4, 1, 0, 1)
    assert report.per_position == pytest.approx((2 / 6, 1 / 6, 1 / 6))
    assert 1 + sum(report.per_position) == pytest.approx(report.pooled)
    assert (report.num_prompts, report.num_rounds, report.num_tokens, report.seconds) == (2, 6, 18, 1.0)


def test_the_interval_holds_the_mean_and_narrows():
    few = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0)] * 3)
    many = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0)] * 30)
    assert few.interval[0] < few.mean < few.interval[1]
    assert many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]
    spread = np.std([2.5, 1.25] * 30, ddof=1) / np.sqrt(60)
    assert many.interval == pytest.approx((many.mean - 1.96 * spread, many.mean + 1.96 * spread), abs=1e-4)
    assert combine_results([result(1, 0, 0, 1)]).interval == (1.0, 4.0)


def test_one_differing_prompt_is_not_lossless():
    report = combine_results([result(1, 1), result(1, 1, lossless=False)])
    assert not report.lossless
    assert report.num_differing == 1


def test_a_prompt_without_a_round_counts_for_losslessness_only():
    report = combine_results([result(0, 2), result(0, 0, lossless=False)])
    assert (report.mean, report.num_prompts, report.lossless) == (2.0, 2, False)


def test_what_cannot_be_combined_is_refused():
    with pytest.raises(Failed, match="no round"):
        combine_results([result(0, 0)])
    with pytest.raises(ContractBroken, match="block sizes"):
        combine_results([result(1, 1), result(1, 1, 1)])
    with pytest.raises(ContractBroken, match="histogram"):
        result(1)


def test_prompts_shared_out_give_the_same_report():
    target, drafter = tiny_target(), strong_drafter(tiny_config())
    prompts = [np.arange(3 + n) for n in range(4)]
    whole = measure_acceptance(target, drafter, prompts, max_new_tokens=12, stop_ids=frozenset())
    shared = combine_results(
        [measure_prompt(target, drafter, p, max_new_tokens=12, stop_ids=frozenset()) for p in reversed(prompts)]
    )
    assert whole.lossless
    assert whole.histogram == shared.histogram
    assert whole.mean == pytest.approx(shared.mean)
    assert whole.num_tokens == 48
