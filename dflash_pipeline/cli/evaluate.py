"""`dflash evaluate` and `verify-export`: what a drafter is worth, and whether its files are what they say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, example
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries

DraftDir = Annotated[Path, typer.Option("--draft", help="An exported drafter.")]
TargetDir = Annotated[Path, typer.Option("--target", help="The target it was trained for.")]


def register(app: typer.Typer) -> None:
    app.command("evaluate", epilog=example("dflash evaluate --draft DIR --target DIR --prompts questions.jsonl"))(
        evaluate
    )
    app.command("verify-export", epilog=example("dflash verify-export storage/exports/RUN --target DIR"))(verify_export)


def evaluate(
    draft: DraftDir,
    target: TargetDir,
    prompts: Annotated[Path, typer.Option("--prompts", help="JSONL with messages, question, prompt or turns.")],
    num_prompts: Annotated[int, typer.Option("--num-prompts", min=1, help="Use the first N prompts.")] = 64,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=2, help="Longest answer.")] = 64,
    num_processes: Annotated[
        int, typer.Option("--num-processes", min=1, help="Prompts are shared out among them.")
    ] = 1,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure acceptance length by real decoding.

    Draft-and-verify, greedy; every output is compared with the target's own.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.evaluate_files import evaluate_files

        report = evaluate_files(
            draft,
            target,
            prompts,
            num_prompts=num_prompts,
            max_new_tokens=max_new_tokens,
            num_processes=num_processes,
        )
        found = {
            "acceptance": {
                "mean": report.mean,
                "pooled": report.pooled,
                "histogram": list(report.histogram),
                "per_position": list(report.per_position),
                "interval": list(report.interval),
            },
            "lossless": report.lossless,
            "num_prompts": report.num_prompts,
            "num_differing": report.num_differing,
        }
        answer.say(found, lambda: _show(found))
        if not report.lossless:
            raise typer.Exit(1)


def verify_export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An exported drafter.")],
    target: TargetDir,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Prove that an exported drafter is what it says.

    Its files, config, tensors, tokenizer, and decoding that changes nothing.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.evaluation.verify import verify_export as verify

        checks = verify(folder, target)
        found = {"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]}
        answer.say(found, lambda: _show_checks(found["checks"]))
        if not found["ok"]:
            raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    acceptance = found["acceptance"]
    low, high = acceptance["interval"]
    print(
        f"acceptance length {acceptance['mean']:.3f} (95 %: {low:.3f} to {high:.3f}) on {found['num_prompts']} prompts"
    )
    print(f"pooled {acceptance['pooled']:.3f}; rounds by length {acceptance['histogram']}")
    print(
        "output equals the target's own" if found["lossless"] else f"OUTPUT DIFFERS on {found['num_differing']} prompts"
    )


def _show_checks(checks: Any) -> None:
    for check in checks:
        print(f"{'ok    ' if check['ok'] else 'FAILED'} {check['name']}: {check['detail']}")
