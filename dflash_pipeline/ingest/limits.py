"""How much of a source is read before it counts as hostile."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_pipeline.contracts.errors import ContractBroken


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on one row and on one compressed file. What is above costs that row, or that file, and no memory."""

    row_bytes: int = 64 * 2**20
    depth: int = 64
    """Brackets inside brackets."""
    unpacked_bytes: int = 2**36
    """What a compressed file may unpack to."""
    unpacked_ratio: float = 200.0
    """How many times its own size that may be; small files, which can do no harm, may be above."""

    def __post_init__(self) -> None:
        if min(self.row_bytes, self.depth, self.unpacked_bytes) < 1 or not self.unpacked_ratio >= 1:
            raise ContractBroken(f"{self}", where="limits of ingestion", fix="give limits of at least 1")
