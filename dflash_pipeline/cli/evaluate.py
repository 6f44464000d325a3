"""`dflash evaluate`: what a drafter is worth."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, example, one_of
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries

DraftDir = Annotated[Path, typer.Option("--draft", help="An exported drafter.")]
TargetDir = Annotated[Path, typer.Option("--target", help="The target it was trained for.")]
THINKING: dict[str, bool | None] = {"on": True, "off": False, "template": None}
"""What the target's template is told as `enable_thinking`: `target.thinking` in a recipe."""


def register(app: typer.Typer) -> None:
    app.command("evaluate", epilog=example("dflash evaluate --draft DIR --target DIR --prompts questions.jsonl"))(
        evaluate
    )


def evaluate(
    draft: DraftDir,
    target: TargetDir,
    prompts: Annotated[Path, typer.Option("--prompts", help="JSONL with messages, question, prompt or turns.")],
    num_prompts: Annotated[int, typer.Option("--num-prompts", min=1, help="Use the first N prompts.")] = 64,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=2, help="Longest answer.")] = 64,
    num_processes: Annotated[
        int, typer.Option("--num-processes", min=1, help="Prompts are shared out among them.")
    ] = 1,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Prompts that a process decodes together.")
    ] = 16,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0: greedy; else rejection sampling at it.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of what is drawn at a temperature.")] = 0,
    thinking: Annotated[
        str, typer.Option("--thinking", help="on, off, or template: as the target's chat template does by itself.")
    ] = "template",
    cost_ratio: Annotated[
        float | None,
        typer.Option("--cost-ratio", min=0.0, help="Time of a draft in target passes of one token: tells a speed-up."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure acceptance length by real decoding.

    Draft-and-verify; greedy output is compared with the target's own.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.evaluation.choice import Choice
        from dflash_pipeline.evaluation.speedup import expected_speedup
        from dflash_pipeline.stages.evaluate_files import evaluate_files

        if cost_ratio is not None:
            expected_speedup(1.0, cost_ratio=cost_ratio)  # Refused before minutes are spent on decoding.
        thinks = THINKING[one_of("--thinking", thinking, tuple(THINKING))]
        report = evaluate_files(
            draft,
            target,
            prompts,
            num_prompts=num_prompts,
            max_new_tokens=max_new_tokens,
            num_processes=num_processes,
            batch_size=batch_size,
            choice=Choice(temperature=temperature, seed=seed),
            thinking=thinks,
        )
        found = {
            "acceptance": {
                "mean": report.mean,
                "pooled": report.pooled,
                "histogram": list(report.histogram),
                "per_position": list(report.per_position),
                "interval": list(report.interval),
            },
            "by_source": [asdict(group) for group in report.by_source],
            "by_length": [asdict(group) for group in report.by_length],
            "cut": asdict(report.cut),
            "prompts": [asdict(prompt) | {"mean": prompt.mean} for prompt in report.prompts],
            "temperature": report.temperature,
            "expected_speedup": None if cost_ratio is None else expected_speedup(report.mean, cost_ratio=cost_ratio),
            "lossless": report.lossless,
            "num_prompts": report.num_prompts,
            "num_differing": report.num_differing,
        }
        answer.say(found, lambda: _show(found))
        if report.lossless is False:
            raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    acceptance = found["acceptance"]
    low, high = acceptance["interval"]
    print(
        f"acceptance length {acceptance['mean']:.3f} (95 %: {low:.3f} to {high:.3f}) on {found['num_prompts']} prompts"
    )
    print(f"pooled {acceptance['pooled']:.3f}; rounds by length {acceptance['histogram']}")
    print(f"cut by the end of an answer: {found['cut']['num_rounds']} rounds, counted in none of these figures")
    for title, groups in (("source", found["by_source"]), ("prompt tokens", found["by_length"])):
        for group in groups if len(groups) > 1 else ():
            low, high = group["interval"]
            figures = f"{group['mean']:.3f} ({low:.3f} to {high:.3f}), {group['num_prompts']} prompts"
            print(f"{title} {group['name']}: {figures}")
    if found["expected_speedup"] is not None:
        print(f"expected speed-up {found['expected_speedup']:.2f}, where verifying a block costs what one token does")
    print(_said_of_losses(found))


def _said_of_losses(found: dict[str, Any]) -> str:
    if found["lossless"] is None:
        return f"drawn at temperature {found['temperature']:g}: no one text to compare with"
    if found["lossless"]:
        return "output equals the target's own"
    return f"OUTPUT DIFFERS on {found['num_differing']} prompts"
