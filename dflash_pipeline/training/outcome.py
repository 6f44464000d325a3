"""How an attempt ended."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_pipeline.training.tracker import EndStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Steps are global: of the whole run."""

    first_step: int
    last_step: int
    total_steps: int
    asked_to_stop: bool
    stopped_early: bool = False
    """By a measured acceptance length."""

    @property
    def finished(self) -> bool:
        """False: asked to stop, or at a limit of steps, with a checkpoint at the step it stopped after."""
        return self.last_step == self.total_steps

    @property
    def status(self) -> EndStatus:
        if self.finished:
            return "finished"
        return "killed" if self.asked_to_stop else "early" if self.stopped_early else "limited"
