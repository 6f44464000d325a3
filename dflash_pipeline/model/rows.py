"""Keys and values of rows that are decoded together, each at a length of its own.

Row r holds its positions 0 … lengths[r] - 1 in the columns of the same numbers. Columns behind them may hold what was
refused, or padding: masks hide them, and what the row goes on with is written over them. So nothing is ever cut back or
moved, and a row that is done makes room for another by setting its length to 0.

R rows, S new tokens of each row, T columns, G key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_SPARE = 64
"""Columns that are made ahead of need: a buffer is copied when it grows."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Place:
    """Where S new tokens of some rows go."""

    rows: Tensor
    """[R] int64"""
    columns: Tensor
    """[R, S] int64: their positions, in the rows and in the text."""
    width: int
    """T: every one of these rows' columns up to the new ones."""
    all_rows: bool

    @property
    def causal(self) -> Tensor:
        """[R, S, T] bool: each new token sees its row's columns up to its own."""
        return torch.arange(self.width, device=self.columns.device) <= self.columns[..., None]


@dataclass(kw_only=True, slots=True, eq=False)
class Rows:
    """The rows' lengths, and per layer buffers [R, T, G, D] of keys and values."""

    lengths: list[int]
    _layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def place(self, num_tokens: int, *, rows: Sequence[int] | None = None, device: torch.device) -> Place:
        """Right after what the rows hold; all of them, or those of these numbers. Lengths stay as they are."""
        chosen = range(len(self.lengths)) if rows is None else rows
        starts = torch.tensor([self.lengths[row] for row in chosen], device=device)
        return Place(
            rows=torch.tensor(list(chosen), device=device),
            columns=starts[:, None] + torch.arange(num_tokens, device=device),
            width=max(self.lengths[row] for row in chosen) + num_tokens,
            all_rows=rows is None,
        )

    def write(self, layer: int, keys_RGSD: Tensor, values_RGSD: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """Keeps keys and values at their place, and gives those of the place's rows from column 0 on [R, G, T, D]."""
        stored = self._layers.get(layer)
        if stored is None or stored[0].shape[1] < place.width:
            stored = self._layers[layer] = (
                self._grown(stored and stored[0], keys_RGSD, place.width),
                self._grown(stored and stored[1], values_RGSD, place.width),
            )
        at = (place.rows[:, None], place.columns)
        for buffer, new in zip(stored, (keys_RGSD, values_RGSD), strict=True):
            buffer[at] = new.transpose(1, 2)
        keys, values = (buffer[:, : place.width] for buffer in stored)
        if not place.all_rows:
            keys, values = keys[place.rows], values[place.rows]
        return keys.transpose(1, 2), values.transpose(1, 2)

    def keep(self, rows: Sequence[int]) -> None:
        """Leave only these rows, in this order."""
        self.lengths = [self.lengths[row] for row in rows]
        for layer, (keys, values) in self._layers.items():
            at = torch.tensor(rows, dtype=torch.long, device=keys.device)
            self._layers[layer] = (keys[at], values[at])

    def _grown(self, old: Tensor | None, new_RGSD: Tensor, width: int) -> Tensor:
        # Zeros, since what a mask hides is still multiplied by 0: it must be finite.
        _, heads, _, dim = new_RGSD.shape
        buffer = new_RGSD.new_zeros(len(self.lengths), width + _SPARE, heads, dim)
        if old is not None:
            buffer[:, : old.shape[1]] = old
        return buffer
