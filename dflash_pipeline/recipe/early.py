"""What a recipe says of the early answer: acceptance on a few prompts while the training runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dflash_pipeline.recipe.section import Section


class Early(Section):
    """Measured by a process beside the ranks, which wait for a copy of the weights only. Changes no weight."""

    enabled: bool = Field(True, description="Whether acceptance is measured while training goes on.")
    every_steps: int | None = Field(
        None, ge=1, description="Measure every so many steps; null: after 8 steps, then ever further apart."
    )
    num_prompts: int = Field(
        8, ge=1, le=1024, description="The validation side's first; without one, those of evaluation.prompts."
    )
    max_new_tokens: int = Field(32, ge=2, le=8192, description="Longest answer that is decoded for it.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="`cuda`: on the first GPU, beside a rank.")
    gpu_memory_gib: float | None = Field(
        None, gt=0, description="Most memory it takes there; beyond it the measuring process ends, not the run."
    )
    threads: int = Field(1, ge=1, le=1024, description="Of the measuring process, on the CPU.")
    largest_cpu_target: int = Field(
        1_000_000_000, ge=1, description="A target with more parameters is not measured on a CPU: it would take hours."
    )
    end_wait_seconds: float = Field(
        5.0, ge=0, le=3600, description="How long the end of the training waits for a measurement of its last weights."
    )
    stop_below: float | None = Field(
        None, ge=1, description="Ends a run whose acceptance is still below, by its whole interval, after the steps."
    )
    stop_after_steps: int | None = Field(None, ge=1, description="Global step from which stop_below counts.")
    stop_above: float | None = Field(
        None, ge=1, description="Ends a run whose acceptance is above, by its whole interval: good enough."
    )

    @model_validator(mode="after")
    def _stops(self) -> Early:
        if (self.stop_below is None) != (self.stop_after_steps is None):
            raise ValueError("stop_below and stop_after_steps go together: at its start every drafter is below")
        if self.stop_below is not None and self.stop_above is not None and self.stop_below >= self.stop_above:
            raise ValueError("stop_below must lie under stop_above")
        if not self.enabled and (self.stop_below is not None or self.stop_above is not None):
            raise ValueError("stop_below and stop_above need measurements; set enabled to true")
        if self.stop_below is not None and self.num_prompts < 2:
            raise ValueError("stop_below needs an interval, and so num_prompts of at least 2")
        return self
