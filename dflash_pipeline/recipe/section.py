"""What every section of a recipe is."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A mapping of a recipe: unknown keys, and numbers that are not finite, are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
