"""What a recipe says of a drafter's way to its users: how it is exported, and what makes it champion."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dflash_pipeline.recipe.section import Section, Share


class Export(Section):
    """The folder that servers read. z-lab's form is always written."""

    speculators: bool = Field(
        False, description="Write speculators' form too, beside z-lab's: exports/<run>-speculators."
    )
    licence: str = Field(
        "unknown", pattern=r"^[a-z0-9][a-z0-9.+-]*$", description="Of the weights, as the Hugging Face hub names it."
    )
    base_model: str | None = Field(
        None,
        min_length=1,
        description="The target's id on the Hugging Face hub, for the model card and for servers; null for its folder.",
    )


class Promotion(Section):
    """A drafter becomes champion when it beats the champion on the same prompts, beyond chance."""

    floor: float | None = Field(
        None, ge=1, description="Acceptance length of a first champion; null for more than the untrained drafter's."
    )
    most_source_loss: Share = Field(0.05, description="Share of its acceptance length that a source may lose.")
    incomparable: Literal["keep", "replace"] = Field(
        "keep", description="When the champion's export is gone or of another target: it stays, or the floor decides."
    )
