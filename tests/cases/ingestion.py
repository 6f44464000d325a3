"""`in_`: a source file, or a script that writes one, through the ingestion stage and back out of the warehouse.

Every file is read under the default limit of a row; one with a row above 1 MiB under that limit too, and then in a
process of its own, whose peak memory is told.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.conversation import Conversation, Ingestion
from dflash_pipeline.recipe import Data, Recipe, Responses, Source, Target
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.warehouse import Warehouse

ROOT = Path(__file__).parents[2]
MIB = 2**20
LIMITS = (64 * MIB, MIB)
MOST_LISTED = 200
"""Rows told one by one; of more, the first and the last half of this many."""
MOST_CHARACTERS = 2000
GENERATOR_SECONDS = 300


def observe(path: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        sources = _generated(path, Path(folder)) if path.suffix == ".py" else [path]
        if max(_longest_line(source) for source in sources) <= LIMITS[1]:
            return observe_sources(sources, LIMITS[0])
        by_limit = {limit: _in_a_process(sources, limit) for limit in LIMITS}
    return by_limit[LIMITS[0]] | {"by_limit": by_limit}


def observe_sources(sources: Sequence[Path], max_row_bytes: int) -> dict[str, Any]:
    """What the ingestion stage made of the files; texts as they lie in the warehouse."""
    ingestion, conversations, rejected = _taken(sources, max_row_bytes)
    _, again, _ = _taken(sources, max_row_bytes)
    ordered = sorted(conversations, key=lambda c: (c.file, c.line))
    ids = [c.conversation_id for c in ordered]
    return {
        "max_row_bytes": max_row_bytes,
        "rows": ingestion.num_rows,
        "accepted": ingestion.accepted,
        "rejected": ingestion.rejected,
        "exact_duplicates": ingestion.exact_duplicates,
        "by_reason": dict(ingestion.by_reason),
        "ids": _some(ids),
        "distinct_ids": len(set(ids)),
        "same_ids_on_a_second_run": [c.conversation_id for c in again] == [c.conversation_id for c in conversations],
        "accepted_rows": [_row(c) for c in _some(ordered)],
        "rows_left_out_here": max(0, len(ordered) - MOST_LISTED),
        "rejected_rows": rejected,
        "file_errors": [{"file": Path(s.file).name, "error": s.error} for s in ingestion.sources if s.error],
        "stored": {"conversations": len(conversations), "rejected_rows": len(rejected)},
    }


def _taken(sources: Sequence[Path], max_row_bytes: int) -> tuple[Ingestion, list[Conversation], list[dict[str, Any]]]:
    data = Data(sources=[Source(path=p) for p in sources], max_row_bytes=max_row_bytes, validation_fraction=0.0)
    recipe = Recipe(name="cases", data=data, target=Target(path=Path("none")), responses=Responses(enabled=False))
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        storage = Storage(root=Path(folder))
        ingestion = make_conversations(recipe, storage).record
        warehouse = Warehouse(storage.warehouse)
        conversations = warehouse.conversations(ingestion.fingerprint)
        rejected = [
            {
                "file": Path(r.file).name,
                "line": r.line,
                "byte_offset": r.byte_offset,
                "id": r.conversation_id,
                "reason": r.reason,
                "excerpt": r.excerpt,
            }
            for r in warehouse.rejected_rows(ingestion.fingerprint)
        ]
    return ingestion, conversations, rejected


def _row(conversation: Conversation) -> dict[str, Any]:
    turns = []
    for message in conversation.messages:
        turn: dict[str, Any] = {"role": message.role, "content": _text(message.content)}
        if message.reasoning is not None:
            turn["reasoning"] = _text(message.reasoning)
        if message.tool_calls is not None:
            turn["tool_calls"] = json.loads(message.tool_calls)
        turns.append(turn)
    row: dict[str, Any] = {"id": conversation.conversation_id, "line": conversation.line, "messages": turns}
    return row if conversation.tools is None else row | {"tools": json.loads(conversation.tools)}


def _text(text: str) -> str | dict[str, Any]:
    if len(text) <= MOST_CHARACTERS:
        return text
    return {"characters": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest(), "begins": text[:80]}


def _some(listed: list[Any]) -> list[Any]:
    half = MOST_LISTED // 2
    return listed if len(listed) <= MOST_LISTED else [*listed[:half], *listed[-half:]]


def _generated(script: Path, folder: Path) -> list[Path]:
    """Run a copy of the script in an output folder, also its argument; whatever it writes there is the input."""
    copy = Path(shutil.copyfile(script, folder / script.name))
    subprocess.run(
        [sys.executable, str(copy), str(folder)], cwd=folder, check=True, capture_output=True, timeout=GENERATOR_SECONDS
    )
    written = sorted(p for p in folder.rglob("*") if p.suffix in (".jsonl", ".ndjson", ".json"))
    if not written:
        raise FileNotFoundError(f"{script.name} wrote no .jsonl or .json file into its folder")
    return written


def _longest_line(path: Path) -> int:
    with path.open("rb") as file:
        return max((len(line) for line in file), default=0)


def _peak_memory() -> int:
    """Of this process since it was started; `getrusage` would tell its parent's if that was larger."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _in_a_process(sources: Sequence[Path], limit: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cases.ingestion", str(limit), *map(str, sources)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


if __name__ == "__main__":
    facts = observe_sources([Path(name) for name in sys.argv[2:]], int(sys.argv[1]))
    print(json.dumps(facts | {"peak_memory_bytes": _peak_memory()}))
