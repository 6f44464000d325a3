"""An export is told its own acceptance: figures in the model card, and a few prompts that a verification repeats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.results import ExportedDrafter
from dflash_pipeline.evaluation.acceptance import AcceptanceReport
from dflash_pipeline.evaluation.carried import CARRIED, MOST_PROMPTS, CarriedAcceptance, CarriedPrompt
from dflash_pipeline.evaluation.export import CARD, WEIGHTS
from dflash_pipeline.evaluation.prompts import Prompt
from dflash_pipeline.model.loading import stop_token_ids
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.acceptance import AcceptanceComparison, report_prompts
from dflash_pipeline.stages.model_card import with_acceptance
from dflash_pipeline.store.files import file_sha256
from dflash_pipeline.store.folder_files import put_into_folder
from dflash_pipeline.store.layout import Storage


def carry_report(
    recipe: Recipe,
    storage: Storage,
    ingestion: Ingestion,
    exported: ExportedDrafter,
    comparison: AcceptanceComparison,
) -> bool:
    """Complete every form of the export. Weights and config stay as they are. False when all was there already."""
    folders = [Path(exported.export_dir)]
    if exported.speculators_dir is not None:
        folders.append(Path(exported.speculators_dir))
    carried = carried_acceptance(
        comparison.trained,
        report_prompts(recipe, storage, ingestion),
        weights=folders[0] / WEIGHTS,
        max_new_tokens=comparison.max_new_tokens,
        stop_ids=stop_token_ids(recipe.target.path),
    )
    written = [complete(folder, carried, comparison.before, comparison.trained) for folder in folders]
    return any(written)


def carried_acceptance(
    report: AcceptanceReport,
    prompts: Sequence[Prompt],
    *,
    weights: Path,
    max_new_tokens: int,
    stop_ids: frozenset[int],
) -> CarriedAcceptance | None:
    """The first prompts of the report that had a whole round. None at a temperature: nothing there can be repeated."""
    measured = [
        CarriedPrompt(token_ids=tuple(prompt.ids.tolist()), mean=result.mean)
        for prompt, result in zip(prompts, report.prompts, strict=True)
        if result.mean is not None
    ]
    if report.temperature > 0 or not measured:
        return None
    return CarriedAcceptance(
        weights=file_sha256(weights),
        num_prompts=report.num_prompts,
        mean=report.mean,
        interval=report.interval,
        lossless=bool(report.lossless),
        max_new_tokens=max_new_tokens,
        stop_ids=tuple(sorted(stop_ids)),
        block_size=len(report.histogram),
        prompts=tuple(measured[:MOST_PROMPTS]),
    )


def complete(
    folder: Path, carried: CarriedAcceptance | None, before: AcceptanceReport | None, trained: AcceptanceReport
) -> bool:
    """The card with its acceptance, and what can be measured again beside it."""
    card = (folder / CARD).read_text(encoding="utf-8")
    texts = {CARD: with_acceptance(card, before, trained)}
    if carried is not None:
        texts[CARRIED] = TypeAdapter(CarriedAcceptance).dump_json(carried, indent=1).decode() + "\n"
    return put_into_folder(folder, texts)
