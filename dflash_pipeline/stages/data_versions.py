"""Names of what was made, for those records that have none of their own: equal content, equal name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.forecast import StrategyForecast
from dflash_pipeline.contracts.promotion import PromotionDecision
from dflash_pipeline.contracts.results import ExportedDrafter, TrainedDrafter
from dflash_pipeline.store.files import HASH_LIST, file_sha256

if TYPE_CHECKING:
    from dflash_pipeline.stages.acceptance import AcceptanceComparison

WEIGHTS = ("model.safetensors", "config.json")


def plan_version(snapshot: CorpusSnapshot, spec: BatchingSpec) -> str:
    """Of every epoch's manifest: with the epoch's number it follows from these two alone."""
    return fingerprint(snapshot=snapshot.fingerprint, spec=spec)


def forecast_version(snapshot: CorpusSnapshot, rows: Sequence[StrategyForecast]) -> str:
    return fingerprint(snapshot=snapshot.fingerprint, rows=tuple(rows))


def drafter_version(trained: TrainedDrafter) -> str:
    """Of a limited run also how far it came: its next steps make another drafter of it."""
    return f"{trained.run}:{trained.steps_done}"


def export_version(exported: ExportedDrafter) -> str:
    """By the hashes of weights and configuration. The card is left out: it is written again with what was measured."""
    folders = [Path(folder) for folder in (exported.export_dir, exported.speculators_dir) if folder is not None]
    lines = [line for folder in folders for line in (folder / HASH_LIST).read_text(encoding="utf-8").splitlines()]
    return fingerprint(files=sorted(line for line in lines if line.endswith(WEIGHTS)))


def report_version(report: AcceptanceComparison) -> str:
    """By what was measured; how long that took, and where the files lie, is no part of it."""
    timeless = {
        name: None if found is None else replace(found, seconds=0.0)
        for name, found in (("untrained", report.untrained), ("trained", report.trained), ("first", report.begun_with))
    }
    return fingerprint(
        run=report.run,
        most=report.max_new_tokens,
        cost_ratio=report.cost_ratio,
        estimate=report.estimate,
        measured=timeless,
    )


def decision_version(decision: PromotionDecision) -> str:
    """By who is champion and what was compared; the hour of the decision is no part of it."""
    champion = None if decision.champion is None else decision.champion.weights
    return fingerprint(champion=champion, action=decision.action, basis=decision.basis)


def page_version(page: Path) -> str:
    return file_sha256(page)[:16]
