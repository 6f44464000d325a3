"""What every section of a recipe is."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A mapping of a recipe: unknown keys, numbers that are not finite, and true or false for a number are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic takes true for 1, so that `epochs: yes` would train for one epoch.
        wanted = types_of(cls.model_fields[str(info.field_name)].annotation)
        given = value if isinstance(value, list | tuple) else (value,)
        if bool not in wanted and wanted & {int, float} and any(isinstance(item, bool) for item in given):
            raise ValueError("a number is wanted here, not true or false")
        return value


def types_of(annotation: Any) -> set[Any]:
    """An annotation and all that stands in its brackets."""
    return {annotation}.union(*(types_of(inner) for inner in get_args(annotation) if not isinstance(inner, str)))
