"""`dflash export` and `dflash verify-export`: a drafter's folder in the forms that servers read, and its proof."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_pipeline.cli.options import Debug, Json, StorageDir, example, one_of
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries
from dflash_pipeline.contracts.errors import Refused

FORMATS = ("zlab", "speculators")


def register(app: typer.Typer) -> None:
    app.command("export", epilog=example("dflash export 0123456789abcdef --format speculators --out drafter"))(export)
    app.command("verify-export", epilog=example("dflash verify-export storage/exports/RUN --target DIR"))(verify_export)


def export(
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="A run: the name of its folder in runs/.")],
    out: Annotated[Path, typer.Option("--out", help="A folder that does not exist yet.")],
    format_name: Annotated[str, typer.Option("--format", help="zlab, or speculators for `vllm serve DIR`.")] = "zlab",
    target: Annotated[
        Path | None, typer.Option("--target", help="The target's folder, if it is not where the run found it.")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option("--base-model", help="The target's id on the Hugging Face hub, for card and servers.")
    ] = None,
    licence: Annotated[str, typer.Option("--licence", help="Of the weights, as the hub names it.")] = "unknown",
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a run's drafter for servers to read, and prove it.

    Any run with a whole checkpoint, finished or not. Report and card come along when the pipeline has measured it.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from pydantic import ValidationError

        from dflash_pipeline.recipe import Export
        from dflash_pipeline.stages.export_run import export_run

        form = one_of("--format", format_name, FORMATS)
        try:
            labels = Export(licence=licence, base_model=base_model)
        except ValidationError:
            raise Refused(
                f"{licence!r}", where="--licence", fix="give a short name as the hub has it, such as apache-2.0"
            ) from None
        found = export_run(run_name, storage, out, form=form, labels=labels, target=target)
        answer.say(found, lambda: _show_export(found))
        if not found["ok"]:
            raise typer.Exit(1)


def verify_export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An exported drafter, in either form.")],
    target: Annotated[Path, typer.Option("--target", help="The target it was trained for.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Prove that an exported drafter is what it says.

    Files, config, tensors, target, tokenizer, decoding that changes nothing, and its report measured again.
    """
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.evaluation.verify import verify_export as verify

        checks = verify(folder, target)
        found = {"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]}
        answer.say(found, lambda: _show_checks(found["checks"]))
        if not found["ok"]:
            raise typer.Exit(1)


def _show_export(found: dict[str, Any]) -> None:
    print(
        f"{found['out']}: {found['num_tensors']} tensors in {found['format']} form, "
        f"{found['steps_done']:,} of {found['total_steps']:,} steps"
    )
    _show_checks(found["checks"])


def _show_checks(checks: Any) -> None:
    for check in checks:
        print(f"{'ok    ' if check['ok'] else 'FAILED'} {check['name']}: {check['detail']}")
