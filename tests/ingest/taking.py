"""Files through the whole of ingestion, into a warehouse and out of it again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.conversation import Conversation, Ingestion, RejectedRow
from dflash_pipeline.ingest.ingestion import Rules
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.sources import SourceFile, expand, look_at
from dflash_pipeline.stages.conversations import ingest
from dflash_pipeline.store.warehouse import Warehouse

RULES = Rules(max_rows=None, validation_fraction=0.0, limits=Limits())

Taken = tuple[Ingestion, list[Conversation], list[RejectedRow]]


def take(*sources: SourceFile | Path, rules: Rules = RULES, **limits: Any) -> Taken:
    """The ingestion, its conversations in canonical order, and the rejected rows as they were met."""
    ingestion, conversations, rejected, _ = take_all(sources, replace(rules, limits=replace(rules.limits, **limits)))
    return ingestion, conversations, rejected


def take_all(
    sources: Sequence[SourceFile | Path], rules: Rules
) -> tuple[Ingestion, list[Conversation], list[RejectedRow], list[Conversation]]:
    """As `take`, and the prompts that are to be answered."""
    files = expand([SourceFile(path=source) if isinstance(source, Path) else source for source in sources])
    with tempfile.TemporaryDirectory(prefix="dflash-ingest-") as folder:
        warehouse = Warehouse(Path(folder) / "warehouse.duckdb")
        ingestion = ingest([look_at(file, rules.limits) for file in files], rules, warehouse).record
        prompts = [prompt for batch in warehouse.stream_prompts(ingestion.fingerprint) for prompt in batch]
        return (
            ingestion,
            warehouse.conversations(ingestion.fingerprint),
            warehouse.rejected_rows(ingestion.fingerprint),
            prompts,
        )
