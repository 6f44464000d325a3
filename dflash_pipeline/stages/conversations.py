"""Source files to conversations in the warehouse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from dflash_pipeline.contracts.conversation import Ingestion, RejectedRow
from dflash_pipeline.ingest.collector import only_new_collected
from dflash_pipeline.ingest.ingestion import Rules, Verdict, ingestion_fingerprint, read_verdicts
from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.sources import KnownFile, SourceFile, expand, look_at
from dflash_pipeline.ingest.split import side_threshold
from dflash_pipeline.ingest.unpack import FileUnreadable
from dflash_pipeline.recipe import Data, Recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.stages.terminal import show_bars
from dflash_pipeline.store.ingestions import IngestionDraft
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.warehouse import Warehouse

_BATCH_ROWS = 4096
_BATCH_SIZE = 32 * 2**20


def make_conversations(recipe: Recipe, storage: Storage) -> Made[Ingestion]:
    """Read every source strictly; each row ends up accepted, rejected with a reason, or counted as a duplicate."""
    rules, files = _seen(recipe)
    return ingest(files, rules, Warehouse(storage.warehouse))


def conversations_name(recipe: Recipe) -> str:
    """The fingerprint that an ingestion of the recipe's sources, as they are now, has. Reads every file once."""
    rules, files = _seen(recipe)
    return ingestion_fingerprint(files, rules)


def _seen(recipe: Recipe) -> tuple[Rules, list[KnownFile]]:
    rules = reading_rules(recipe.data)
    return rules, [look_at(source, rules.limits) for source in expand(source_files(recipe.data))]


def source_files(data: Data) -> list[SourceFile]:
    """The recipe's sources, to be expanded."""
    return [
        SourceFile(
            path=s.path,
            mapping={str(what): field for what, field in s.map.items()},
            format=s.format,
            weight=s.weight,
        )
        for s in data.sources
    ]


def ingest(files: Sequence[KnownFile], rules: Rules, warehouse: Warehouse) -> Made[Ingestion]:
    """Read the files into the warehouse, in one transaction, unless it holds what would come of them.

    Of rows with one id the first is kept: later ones with its text are exact duplicates, with another text rejected.
    A file that fails as a whole is reported in its `SourceReport` and gives nothing.
    """

    def read(draft: IngestionDraft) -> Ingestion:
        with only_new_collected():
            for file in files:
                draft.end_file(file.name, sha256=file.sha256, error=_read_file(file, rules, draft))
        return draft.finish(lambda lowest, highest: side_threshold(lowest, highest, rules.validation_fraction))

    record, reused = warehouse.find_or_write_ingestion(ingestion_fingerprint(files, rules), read)
    return Made(record=record, reused=reused)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejections:
    """How many rows were refused, and whether that is so many that the source must be looked at first."""

    share: float
    warns: bool
    blocks: bool
    """Also warns."""
    seen: str


def judge_rejections(recipe: Recipe, ingestion: Ingestion) -> Rejections:
    """Rejected rows by the recipe's bounds. Prompts that the target is to answer are no loss, and do not count."""
    answered = ingestion.num_prompts if recipe.responses.enabled else 0
    lost = ingestion.rejected - answered
    share = lost / ingestion.num_rows if ingestion.num_rows else 0.0
    unread = [source.file for source in ingestion.sources if source.error is not None]
    empty = ingestion.accepted + answered == 0
    blocks = empty or share > recipe.data.rejection_block
    seen = f"{lost:,} of {ingestion.num_rows:,} rows rejected ({share:.1%})"
    if unread:
        seen += f"; not taken at all: {', '.join(unread[:3])}{' and others' if len(unread) > 3 else ''}"
    return Rejections(
        share=share, warns=blocks or bool(unread) or share > recipe.data.rejection_warn, blocks=blocks, seen=seen
    )


def reading_rules(data: Data) -> Rules:
    """What the recipe says of rows and limits."""
    return Rules(
        max_rows=data.max_rows,
        validation_fraction=data.validation_fraction,
        limits=Limits(
            row_bytes=data.max_row_bytes,
            depth=data.max_depth,
            unpacked_bytes=data.max_unpacked_bytes,
            unpacked_ratio=data.max_unpacked_ratio,
        ),
    )


def _read_file(file: KnownFile, rules: Rules, draft: IngestionDraft) -> str | None:
    """Stage the file's verdicts; why it cannot be taken as a whole, if it cannot."""
    verdicts = read_verdicts(file, rules)
    try:
        for batch in _batches(tqdm(verdicts, desc=file.name, unit="row", disable=not show_bars())):
            draft.add(batch)
    except FileUnreadable as refusal:
        return str(refusal)
    return None


def _batches(rows: Iterable[list[Verdict]]) -> Iterator[list[Verdict]]:
    batch: list[Verdict] = []
    size = 0
    for row in rows:
        batch.extend(row)
        size += sum(0 if isinstance(verdict, RejectedRow) else verdict.size for verdict in row)
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
