"""What the training loop needs of a tracker, and the one that keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from dflash_pipeline.contracts.events import Record

Params = Mapping[str, str | int | float | bool]
EndStatus = Literal["finished", "limited", "early", "failed", "killed"]
"""`limited`: at the recipe's own limit of steps, in good order; `early`: likewise, by a measured acceptance length."""


class Tracker(Protocol):
    """Is told, and never asked. `start` comes first, `end` last, each once; no call may hold up a step."""

    def start(self, params: Params) -> None: ...

    def tell(self, record: Record) -> None: ...

    def sync(self) -> None:
        """Called before a checkpoint, which must never know more than what a tracker keeps on disk."""
        ...

    def end(self, status: EndStatus) -> None: ...


class NullTracker:
    """For every rank but the first, and for runs without a tracking server."""

    def start(self, params: Params) -> None:
        pass

    def tell(self, record: Record) -> None:
        pass

    def sync(self) -> None:
        pass

    def end(self, status: EndStatus) -> None:
        pass
