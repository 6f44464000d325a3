"""From a measured drafter to a decision: champion or challenger, and why. The file of decisions is the truth.

First the registry knows the version, then the decision is written, then aliases follow it. A kill in between leaves a
decision whose aliases are behind; the next call moves them, and decides nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.promotion import (
    Contender,
    Difference,
    Judgement,
    PromotionDecision,
    PromotionRules,
    SourceChange,
    SourceMean,
    Standing,
    judge_challenger,
    judge_first,
    reign,
    taken_back,
)
from dflash_pipeline.contracts.results import ExportedDrafter
from dflash_pipeline.evaluation.acceptance import AcceptanceReport
from dflash_pipeline.evaluation.bootstrap import paired_interval
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.acceptance import AcceptanceComparison, measured
from dflash_pipeline.stages.contenders import contender_of, settle_registry
from dflash_pipeline.stages.made import Made
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.promotions import append_decision, deciding, read_decisions


def make_champion(
    recipe: Recipe,
    storage: Storage,
    ingestion: Ingestion,
    exported: ExportedDrafter,
    comparison: AcceptanceComparison,
) -> Made[PromotionDecision]:
    """Judge the newest drafter against the champion, record it, move the aliases. The same again decides nothing."""
    contender = contender_of(storage, Path(exported.export_dir).name)
    with deciding(storage.promotions):
        settle_registry(recipe.name, storage, contender)
        decisions = read_decisions(storage.promotions, recipe.name)
        found = _judged(recipe, storage, ingestion, contender, comparison, decisions)
        if not found.reused:
            append_decision(storage.promotions, found.record)
        settle_registry(recipe.name, storage, contender)
    return found


def promote_by_hand(recipe_name: str, storage: Storage, export: str, *, reason: str) -> PromotionDecision:
    """Make an export champion because a person says so. It must be whole."""
    contender = contender_of(storage, export)
    with deciding(storage.promotions):
        line = reign(read_decisions(storage.promotions, recipe_name))
        if line and line[-1].weights == contender.weights:
            raise Refused("it is champion already", where=f"run {export}", fix="nothing is to be done")
        settle_registry(recipe_name, storage, contender)
        decision = _decision(
            recipe_name, contender, champion=contender, judgement=Judgement(promote=True, reason=reason), by_hand=True
        )
        append_decision(storage.promotions, decision)
        settle_registry(recipe_name, storage, contender)
    return decision


def roll_back(recipe_name: str, storage: Storage, *, reason: str) -> PromotionDecision:
    """The champion before becomes champion again. Once more leads one further back."""
    with deciding(storage.promotions):
        line = reign(read_decisions(storage.promotions, recipe_name))
        if len(line) < 2:
            raise Refused(
                f"recipe {recipe_name} has had {len(line)} champions",
                where="--rollback",
                fix="it needs one before the present one; promote another with --run RUN",
            )
        *_, before, champion = line
        _whole(storage, before)
        judgement = Judgement(promote=False, reason=reason)
        decision = replace(
            _decision(recipe_name, champion, champion=before, judgement=judgement, by_hand=True), action="rolled back"
        )
        settle_registry(recipe_name, storage, champion)
        append_decision(storage.promotions, decision)
        settle_registry(recipe_name, storage, champion)
    return decision


def champion_of(storage: Storage, recipe_name: str) -> Contender | None:
    """Who reigns, from the file alone: no MLflow is asked."""
    line = reign(read_decisions(storage.promotions, recipe_name))
    return line[-1] if line else None


def champion_export(storage: Storage, recipe_name: str) -> Path | None:
    """The champion's folder in z-lab's form; None when there is no champion, or its folder is gone."""
    champion = champion_of(storage, recipe_name)
    folder = None if champion is None else storage.exports / champion.export
    return folder if folder is not None and folder.is_dir() else None


def standing_of(report: AcceptanceReport) -> Standing:
    sources = [SourceMean(source=g.name, num_prompts=g.num_prompts, mean=g.mean) for g in report.by_source]
    return Standing(mean=report.mean, interval=report.interval, sources=tuple(sources))


def difference_of(before: AcceptanceReport, after: AcceptanceReport) -> Difference:
    """Prompt by prompt, so that what prompts share falls out. Prompts without a whole round in either say nothing."""
    interval = paired_interval(before, after)  # Refuses reports of other prompts.
    pairs = [
        (now.source, was.mean, now.mean)
        for was, now in zip(before.prompts, after.prompts, strict=True)
        if was.mean is not None and now.mean is not None
    ]
    changes = []
    for source in sorted({source for source, _, _ in pairs}):
        own = np.array([(was, now) for name, was, now in pairs if name == source])
        changes.append(
            SourceChange(
                source=source, num_prompts=len(own), before=float(own[:, 0].mean()), after=float(own[:, 1].mean())
            )
        )
    mean = float(np.mean([now - was for _, was, now in pairs])) if pairs else 0.0
    return Difference(mean=mean, interval=interval, sources=tuple(changes))


def _judged(
    recipe: Recipe,
    storage: Storage,
    ingestion: Ingestion,
    contender: Contender,
    comparison: AcceptanceComparison,
    decisions: Sequence[PromotionDecision],
) -> Made[PromotionDecision]:
    line = reign(decisions)
    champion = line[-1] if line else None
    if champion is not None and champion.weights == contender.weights:
        return Made(record=[d for d in decisions if d.champion == champion][-1], reused=True)
    judgement = _judge(recipe, storage, ingestion, contender, champion, comparison, decisions)
    now = contender if judgement.promote else champion
    decision = replace(
        _decision(recipe.name, contender, champion=now, judgement=judgement, by_hand=False),
        standing=standing_of(comparison.trained),
    )
    decision = replace(decision, basis=fingerprint(contender=contender.weights, before=champion, judgement=judgement))
    same = [d for d in decisions if d.basis == decision.basis and d.champion == champion]
    return Made(record=same[-1], reused=True) if same else Made(record=decision, reused=False)


def _judge(
    recipe: Recipe,
    storage: Storage,
    ingestion: Ingestion,
    contender: Contender,
    champion: Contender | None,
    comparison: AcceptanceComparison,
    decisions: Sequence[PromotionDecision],
) -> Judgement:
    settings = recipe.promotion
    rules = PromotionRules(floor=settings.floor, most_source_loss=settings.most_source_loss)
    if taken_back(decisions, contender.weights):
        reason = f"its place was taken back by hand; `dflash promote --run {contender.export}` gives it back"
        return Judgement(promote=False, reason=reason)
    first = judge_first(standing_of(comparison.trained), standing_of(comparison.untrained), rules)
    if champion is None:
        return first
    why_not = _incomparable(storage, champion, contender)
    if why_not is None:
        before = measured(recipe, storage, ingestion, storage.exports / champion.export)
        return judge_challenger(difference_of(before, comparison.trained), rules)
    if settings.incomparable == "replace":
        return replace(first, reason=f"{why_not}; {first.reason}")
    reason = f"{why_not}: it stays, as promotion.incomparable is keep"
    return Judgement(promote=False, reason=reason)


def _incomparable(storage: Storage, champion: Contender, contender: Contender) -> str | None:
    if champion.target != contender.target:
        return f"champion {champion.run} is for another target or tokenizer ({champion.target})"
    folder = storage.exports / champion.export
    if not folder.is_dir():
        return f"the export of champion {champion.run} is gone"
    if folder_faults(folder):
        return f"the export of champion {champion.run} is damaged"
    return None


def _whole(storage: Storage, contender: Contender) -> None:
    folder = storage.exports / contender.export
    faults = folder_faults(folder) if folder.is_dir() else ["it is gone"]
    if faults:
        raise Refused(
            f"the export to go back to cannot be served: {faults[0]}",
            where=str(folder),
            fix=f"`dflash export {contender.run} --out {folder}` writes it again, if its run is still there",
        )


def _decision(
    recipe_name: str, contender: Contender, *, champion: Contender | None, judgement: Judgement, by_hand: bool
) -> PromotionDecision:
    now = time.time()
    return PromotionDecision(
        recipe=recipe_name,
        action="promoted" if judgement.promote else "kept",
        reason=judgement.reason,
        contender=contender,
        champion=champion,
        by_hand=by_hand,
        standing=None,
        difference=judgement.difference,
        basis=fingerprint(by_hand=by_hand, at=now),
        unix_seconds=now,
    )
