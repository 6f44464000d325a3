"""Rows that are tokens already: ids, and a mark on each that carries a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_pipeline.contracts.conversation import PreTokenised
from dflash_pipeline.ingest.messages import decoded
from dflash_pipeline.ingest.rows import RowError

_MASKS = ("loss_mask", "assistant_masks", "completion_mask")
_NO_LOSS = -100
"""The label of a token without a loss, in the convention of PyTorch's cross-entropy."""


def read_tokens(row: Mapping[str, Any]) -> PreTokenised:
    """`input_ids` with a mask of 0 and 1, or with `labels`; or a `RowError`."""
    ids = _whole_numbers(row.get("input_ids"))
    if not ids or not all(0 <= token < 2**31 for token in ids):
        raise RowError("bad_tokens")
    mask = next((row[name] for name in _MASKS if row.get(name) is not None), None)
    if mask is not None:
        marks = tuple(_whole_numbers(mask))
        if not set(marks) <= {0, 1}:
            raise RowError("bad_tokens")
        loss_mask = tuple(mark == 1 for mark in marks)
    elif row.get("labels") is not None:
        labels = _whole_numbers(row["labels"])
        if any(label not in (_NO_LOSS, token) for label, token in zip(labels, ids, strict=False)):
            raise RowError("bad_tokens")  # shifted labels, or those of another text
        loss_mask = tuple(label != _NO_LOSS for label in labels)
    else:
        raise RowError("no_loss_mask")
    if len(loss_mask) != len(ids):
        raise RowError("bad_tokens")
    return PreTokenised(token_ids=tuple(ids), loss_mask=loss_mask)


def _whole_numbers(listed: Any) -> list[int]:
    if isinstance(listed, str):
        listed = decoded(listed, "bad_tokens")
    if not isinstance(listed, list) or not all(isinstance(number, int) for number in listed):
        raise RowError("bad_tokens")
    return [int(number) for number in listed]
