"""`dflash ingest`, `rejected`, `show-sample`: what became of one's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from dflash_pipeline.cli.options import Debug, Json, StorageDir, example, one_of
from dflash_pipeline.cli.output import answering
from dflash_pipeline.cli.quiet import quiet_libraries
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe import Format, Mapped

_MAPPED: dict[str, Mapped] = {name: name for name in get_args(Mapped)}


def register(app: typer.Typer) -> None:
    app.command("ingest", epilog=example("dflash ingest --source chats.jsonl --tokenizer models/target"))(ingest)
    app.command("rejected", epilog=example("dflash rejected --json"))(rejected)
    app.command("show-sample", epilog=example("dflash show-sample some-id"))(show_sample)


def ingest(
    source: Annotated[list[Path], typer.Option("--source", help="A file, folder or pattern. May be repeated.")],
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="A tokenizer folder, or the target's own folder.")],
    chat_template: Annotated[
        Path | None, typer.Option("--chat-template", help="A Jinja file in place of the tokenizer's own template.")
    ] = None,
    mapping: Annotated[
        str, typer.Option("--map", help="Fields that hold turns, for example question=user,answer=assistant.")
    ] = "",
    file_format: Annotated[
        str, typer.Option("--format", help=f"One of {', '.join(get_args(Format))}; told by the content if not given.")
    ] = "",
    supervise: Annotated[
        str, typer.Option("--supervise", help="Assistant turns that carry the loss: all or last.")
    ] = "all",
    max_length: Annotated[int, typer.Option("--max-length", min=2, help="Longest sample in tokens.")] = 8192,
    overlong: Annotated[
        str, typer.Option("--overlong", help="What happens to a longer one: truncate or drop.")
    ] = "truncate",
    max_row_bytes: Annotated[
        int, typer.Option("--max-row-bytes", min=1, help="A longer line is rejected as row_too_large.")
    ] = 64 * 2**20,
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn rows into a snapshot of token sequences."""
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.ingest_files import IngestRequest, ingest_files

        request = IngestRequest(
            sources=tuple(source),
            tokenizer=tokenizer,
            chat_template=chat_template,
            mapping=mapping_of(mapping),
            format=one_of("--format", file_format, get_args(Format)) if file_format else None,
            supervise=one_of("--supervise", supervise, ("all", "last")),
            max_length=max_length,
            overlong=one_of("--overlong", overlong, ("truncate", "drop")),
            max_row_bytes=max_row_bytes,
        )
        found = ingest_files(request, storage, known=answer.known)
        answer.say(found, lambda: _show_ingested(found))


def rejected(storage: StorageDir = Path("storage"), as_json: Json = False, debug: Debug = False) -> None:
    """List the rejected rows of the newest ingestion."""
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.store.layout import open_storage
        from dflash_pipeline.store.warehouse import Warehouse

        rows = [
            {
                "file": r.file,
                "line": r.line,
                "byte_offset": r.byte_offset,
                "id": r.conversation_id,
                "reason": r.reason,
                "excerpt": r.excerpt,
            }
            for r in Warehouse(open_storage(storage).warehouse).rejected_rows()
        ]
        answer.say(rows, lambda: _show_rejected(rows))


def show_sample(
    conversation_id: Annotated[str, typer.Argument(metavar="ID", help="A conversation id.")],
    storage: StorageDir = Path("storage"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one sample as the model sees it."""
    quiet_libraries()
    with answering(as_json=as_json, debug=debug) as answer:
        from dflash_pipeline.stages.ingest_files import sample_facts

        found = sample_facts(conversation_id, storage)
        answer.say(found, lambda: _show_sample(found))


def mapping_of(text: str) -> dict[Mapped, str]:
    mapping: dict[Mapped, str] = {}
    for pair in filter(None, text.split(",")):
        field, _, name = pair.partition("=")
        what = _MAPPED.get(name)
        if not field or what is None or what in mapping:
            raise Refused(
                f"{pair!r} is not FIELD=ROLE, with each of {', '.join(_MAPPED)} at most once",
                where="--map",
                fix="write for example question=user,answer=assistant",
            )
        mapping[what] = field
    return mapping


def _show_ingested(found: dict[str, Any]) -> None:
    print(
        f"{found['accepted']:,} accepted, {found['rejected']:,} rejected, "
        f"{found['exact_duplicates']:,} exact duplicates; "
        f"{found['num_tokens']:,} tokens, {found['num_supervised_tokens']:,} supervised; snapshot {found['snapshot']}"
    )
    for reason, number in found["by_reason"].items():
        print(f"  {number:,} {reason}")
    for file in found["files"]:
        if file["error"] is not None:
            print(f"  not taken: {file['error']}")


def _show_rejected(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"{row['file']}:{row['line']} (byte {row['byte_offset']}) {row['reason']}: {row['excerpt']}")
    print(f"{len(rows):,} rejected rows")


def _show_sample(found: dict[str, Any]) -> None:
    print(f"{found['num_tokens']:,} tokens, {found['num_supervised_tokens']:,} supervised")
    if len(found["sample_ids"]) > 1:
        print(f"{len(found['sample_ids'])} copies: samples {', '.join(map(str, found['sample_ids']))}")
    print(found["text"])
    print("--- supervised ---")
    print(found["supervised_text"])
