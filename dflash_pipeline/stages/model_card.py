"""The README of an exported drafter: what it is for, what it was made from, and how to check it."""

from __future__ import annotations

from dflash_pipeline import __version__
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import TrainedDrafter
from dflash_pipeline.recipe import Recipe


def model_card(recipe: Recipe, snapshot: CorpusSnapshot, plan: RunPlan, trained: TrainedDrafter) -> str:
    answers = "the files' own" if snapshot.answers == "source" else f"by the target, greedy ({snapshot.answers})"
    rows = (
        ("target", recipe.target.path.name),
        ("block size", f"{recipe.drafter.block_size} (drafts {recipe.drafter.block_size - 1} tokens a round)"),
        ("run", trained.run),
        (
            "plan",
            f"{plan.fingerprint}: {plan.num_epochs} epochs, {plan.total_steps} steps, strategy {plan.spec.strategy}",
        ),
        ("snapshot", f"{snapshot.fingerprint}: {snapshot.num_train_samples} samples, {snapshot.num_tokens} tokens"),
        ("answers", answers),
        ("loss", f"{trained.first_loss:.3f} to {trained.last_loss:.3f}"),
        ("made with", f"dflash-pipeline {__version__}"),
    )
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        f"# DFlash drafter for {recipe.target.path.name}\n\n"
        "A block drafter for speculative decoding in z-lab's DFlash format. It uses the target's embedding and output\n"
        "head, and drafts only for the target named here.\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        "Measure it: `dflash evaluate --draft DIR --target DIR --prompts FILE`.\n"
    )
