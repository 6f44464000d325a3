"""All records: complete at construction, closed for ever. The old bug, a length that grew stale, can't be written."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

import dflash_pipeline.contracts as contracts
from dflash_pipeline.contracts.progress import ProgressBoard
from dflash_pipeline.training.loader import EpochLoader
from tests.strategies import manifest_of, plan_of, summary_of

MODULES = [
    importlib.import_module(f"{contracts.__name__}.{module.name}")
    for module in pkgutil.iter_modules(contracts.__path__)
]
RECORDS = [
    value
    for module in MODULES
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
]


def test_the_records_are_found():
    names = {record.__name__ for record in RECORDS}
    assert {"BatchingSpec", "EpochManifest", "EpochSummary", "RunPlan", "Position", "Progress", "Sample"} <= names
    assert len(RECORDS) >= 20


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_is_frozen_keyword_only_and_slotted(record):
    parameters = record.__dataclass_params__
    assert parameters.frozen
    assert all(field.kw_only for field in dataclasses.fields(record))
    assert "__slots__" in vars(record)
    assert not any("__dict__" in vars(base) for base in record.__mro__ if base is not object)


@pytest.mark.parametrize("kind", [*RECORDS, ProgressBoard, EpochLoader], ids=lambda kind: kind.__name__)
def test_nothing_has_a_length(kind):
    assert not hasattr(kind, "__len__")


@pytest.mark.parametrize("thing", [manifest_of(2), plan_of(2), summary_of(2), plan_of(2).end, ProgressBoard()])
def test_no_attribute_can_appear_later(thing):
    with pytest.raises((AttributeError, TypeError)):
        thing.batches_per_epoch = 3
    with pytest.raises(TypeError, match="has no len"):
        len(thing)


def test_columns_can_not_be_written():
    manifest = manifest_of(3)
    for name in ("sample_ids", "offsets", "padded_length", "num_tokens", "supervised_tokens", "cost", "filler"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(manifest, name)[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        manifest.micro_batch(1, 0).sample_ids[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        manifest.epoch = 1
