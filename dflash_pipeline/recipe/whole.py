"""The recipe as a whole, and what must hold between its sections."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from dflash_pipeline.recipe.batching import Batching
from dflash_pipeline.recipe.data import Data, Target
from dflash_pipeline.recipe.early import Early
from dflash_pipeline.recipe.evaluation import Evaluation
from dflash_pipeline.recipe.promotion import Export, Promotion
from dflash_pipeline.recipe.responses import Responses
from dflash_pipeline.recipe.schedule import Schedule
from dflash_pipeline.recipe.section import Section
from dflash_pipeline.recipe.tracking import Tracking
from dflash_pipeline.recipe.training import Drafter, Training


class Recipe(Section):
    """One recipe is one line of drafters: its name is the MLflow experiment and the key of its records."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        description="Of this line of drafters: its experiment in MLflow, its records.",
    )
    storage: Path = Field(Path("storage"), description="Relative to the working directory; DFLASH_STORAGE wins.")
    data: Data
    target: Target
    responses: Responses = Responses()
    batching: Batching = Batching()
    drafter: Drafter = Drafter()
    training: Training = Training()
    early: Early = Early()
    evaluation: Evaluation = Evaluation()
    export: Export = Export()
    promotion: Promotion = Promotion()
    schedule: Schedule = Schedule()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        slots = self.batching.slots_per_step
        if slots % self.training.num_ranks:
            raise ValueError(
                f"training.num_ranks {self.training.num_ranks} does not divide batching.slots_per_step {slots}; each "
                f"rank needs the same number of micro-batches in a step: use one of {_divisors(slots)}"
            )
        if self.training.compile and self.training.drafter_sharding == "fsdp":
            raise ValueError(
                "training.compile together with training.drafter_sharding fsdp is not supported: each layer would be "
                "compiled in parts that come and go; set one of them back"
            )
        if self.training.target_sharding == "fsdp" and self.batching.strategy == "varlen":
            raise ValueError(
                "training.target_sharding fsdp needs a target that all ranks run equally often, and batching.strategy "
                "varlen runs it once a document; use another strategy, or target_sharding none"
            )
        return self


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 4096) + 1) if number % n == 0]
