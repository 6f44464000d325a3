"""Acceptance figures by hand: means over prompts, over rounds, by position, source and length; cut rounds apart."""

from dataclasses import replace

import numpy as np
import pytest

from dflash_pipeline.contracts.errors import ContractBroken, Failed
from dflash_pipeline.evaluation.acceptance import (
    AcceptanceReport,
    PromptAcceptance,
    combine_results,
    measure_acceptance,
    measure_prompts,
)
from dflash_pipeline.evaluation.bootstrap import mean_interval
from dflash_pipeline.evaluation.choice import Choice
from dflash_pipeline.evaluation.decode_rows import Decoding
from dflash_pipeline.evaluation.prompts import Prompt
from dflash_pipeline.store.records import load_record, save_record
from tests.tiny_models import strong_drafter, tiny_config, tiny_target


def result(*histogram: int, cut: int = 0, lossless: bool | None = True, source: str = "a", length: int = 5):
    whole = sum(size * rounds for size, rounds in enumerate(histogram, start=1))
    return PromptAcceptance(
        source=source,
        prompt="p",
        prompt_tokens=length,
        num_tokens=1 + whole + cut,
        histogram=histogram,
        cut_tokens=cut,
        lossless=lossless,
    )


def test_figures_by_hand():
    report = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0)], seconds=1.5)
    assert report.mean == pytest.approx((2.5 + 1.25) / 2)
    assert report.pooled == pytest.approx(10 / 6)
    assert report.histogram == (4, 1, 0, 1)
    assert report.per_position == pytest.approx((2 / 6, 1 / 6, 1 / 6))
    assert 1 + sum(report.per_position) == pytest.approx(report.pooled)
    assert (report.num_prompts, report.num_rounds, report.num_tokens, report.seconds) == (2, 6, 12, 1.5)
    assert (report.block_size, report.temperature, report.lossless) == (4, 0.0, True)


def test_cut_rounds_enter_no_mean():
    whole = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0)])
    cut = combine_results([result(1, 0, 0, 1, cut=1), result(3, 1, 0, 0, cut=3), result(0, 0, 0, 0, cut=2)])
    assert (cut.cut.num_rounds, cut.cut.num_tokens) == (3, 6)
    assert (whole.cut.num_rounds, whole.cut.num_tokens) == (0, 0)
    assert cut.num_tokens == whole.num_tokens + 1 + 6
    for name in ("mean", "pooled", "histogram", "per_position", "interval", "num_rounds"):
        assert getattr(cut, name) == getattr(whole, name)
    assert cut.prompts[2].mean is None


def test_by_source_and_by_length():
    results = [
        result(1, 1, source="b", length=7),
        result(0, 2, source="a", length=8),
        result(2, 0, source="b", length=15),
        result(0, 0, cut=1, source="c", length=200),
    ]
    report = combine_results(results)
    assert [(g.name, g.num_prompts, g.num_rounds, g.mean) for g in report.by_source] == [
        ("a", 1, 2, 2),
        ("b", 2, 4, 1.25),
    ]
    assert [(g.name, g.num_prompts, g.mean) for g in report.by_length] == [("4 to 7", 1, 1.5), ("8 to 15", 2, 1.5)]
    assert report.by_source[0].interval == (1.0, 2.0)
    assert report.by_source[1].interval == mean_interval([1.5, 1.0])
    assert [p.source for p in report.prompts] == ["b", "a", "b", "c"]


def test_the_interval_is_over_prompts_and_narrows():
    few = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0)] * 3)
    many = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0)] * 30)
    assert few.interval[0] < few.mean < few.interval[1]
    assert many.interval == mean_interval([2.5, 1.25] * 30)
    assert many.interval[1] - many.interval[0] < 0.5 * (few.interval[1] - few.interval[0])
    assert combine_results([result(1, 0, 0, 1)]).interval == (1.0, 4.0)


def test_one_differing_prompt_is_not_lossless():
    report = combine_results([result(1, 1), result(1, 1, lossless=False)])
    assert report.lossless is False
    assert report.num_differing == 1
    assert combine_results([result(1, 1, lossless=None)], temperature=1.0).lossless is None


def test_a_prompt_without_a_round_counts_for_losslessness_only():
    report = combine_results([result(0, 2), result(0, 0, lossless=False)])
    assert (report.mean, report.num_prompts, report.lossless) == (2.0, 2, False)


def test_what_cannot_be_combined_is_refused():
    with pytest.raises(Failed, match="no whole round"):
        combine_results([result(0, 0, cut=1)])
    with pytest.raises(ContractBroken, match="block sizes"):
        combine_results([result(1, 1), result(1, 1, 1)])
    with pytest.raises(ContractBroken, match="histogram"):
        result(1)
    with pytest.raises(ContractBroken, match="every token but the first"):
        replace(result(1, 1), num_tokens=9)


def test_a_report_comes_back_from_its_file(tmp_path):
    report = combine_results([result(1, 0, 0, 1), result(3, 1, 0, 0, cut=2)], temperature=0.5)
    save_record(tmp_path / "r.json", report)
    assert load_record(tmp_path / "r.json", AcceptanceReport) == report


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompts_shared_out_give_the_same_report(temperature):
    target, drafter = tiny_target(), strong_drafter(tiny_config())
    prompts = [np.arange(3 + n) for n in range(4)]
    choice = Choice(temperature=temperature, seed=4)
    whole = measure_acceptance(target, drafter, prompts, max_new_tokens=12, stop_ids=frozenset(), choice=choice)
    decoding = Decoding(max_new_tokens=12, stop_ids=frozenset(), batch_size=2, choice=choice)
    named = [Prompt(ids=ids, source="") for ids in prompts]
    later, _ = measure_prompts(target, drafter, named[1:], decoding, numbers=[1, 2, 3])
    first, _ = measure_prompts(target, drafter, named[:1], decoding, numbers=[0])
    shared = combine_results([*first, *later], temperature=temperature)
    assert replace(whole, seconds=0.0) == shared
    assert whole.lossless is (True if temperature == 0 else None)
    assert whole.num_tokens == 48
