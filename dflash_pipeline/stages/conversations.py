"""Source files to conversations in the warehouse."""

from __future__ import annotations

from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.ingest.ingestion import SourceFile, ingest, ingestion_fingerprint
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.made import Made
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.warehouse import Warehouse


def make_conversations(recipe: Recipe, storage: Storage) -> Made[Ingestion]:
    """Read every source strictly; each row ends up accepted, rejected with a reason, or counted as a duplicate."""
    data = recipe.data
    sources = [
        SourceFile(path=source.path, mapping={str(role): field for role, field in source.map.items()})
        for source in data.sources
    ]
    identity = ingestion_fingerprint(
        sources,
        max_rows=data.max_rows,
        max_row_bytes=data.max_row_bytes,
        validation_fraction=data.validation_fraction,
    )
    warehouse = Warehouse(storage.warehouse)
    if found := warehouse.find_ingestion(identity):
        return Made(record=found, reused=True)
    ingestion, conversations, rejected = ingest(
        sources,
        max_rows=data.max_rows,
        max_row_bytes=data.max_row_bytes,
        validation_fraction=data.validation_fraction,
    )
    warehouse.save_ingestion(ingestion, conversations, rejected)
    return Made(record=ingestion, reused=False)
