"""When a checkpoint is due between the ends of epochs."""

from __future__ import annotations

import time
from collections.abc import Callable

from dflash_pipeline.training.settings import Saving


class SaveClock:
    """Counts steps and time since the last checkpoint. Ask `is_due` once in every step."""

    def __init__(self, saving: Saving, *, now: Callable[[], float] = time.monotonic) -> None:
        self._saving = saving
        self._now = now
        self.saved()

    def saved(self) -> None:
        self._steps = 0
        self._since = self._now()

    def is_due(self) -> bool:
        """Whether the step that is about to run should end in a checkpoint."""
        self._steps += 1
        steps, minutes = self._saving.every_steps, self._saving.every_minutes
        by_steps = steps is not None and self._steps >= steps
        return by_steps or (minutes is not None and self._now() - self._since >= 60 * minutes)
