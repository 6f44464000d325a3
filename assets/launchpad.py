"""The form before a run: the common choices, with the recipe's own values, bounds and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import dagster as dg
from dagster._config.config_type import ConfigScalar, ConfigScalarKind
from dagster._config.errors import PostProcessingError
from pydantic.fields import FieldInfo

from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe.batching import Batching
from dflash_pipeline.recipe.choices import CHOICES, chosen, setting, with_choices
from dflash_pipeline.recipe.explained import allowed
from dflash_pipeline.recipe.training import Training

STRATEGIES: tuple[str, ...] = get_args(Batching.model_fields["strategy"].annotation)
STARTS: tuple[str, ...] = get_args(Training.model_fields["warm_start"].annotation)


class Number(ConfigScalar):
    """A float of the form; true and false, which Dagster takes for numbers, are none."""

    def __init__(self) -> None:
        super().__init__(key="Number", given_name="Number", scalar_kind=ConfigScalarKind.FLOAT)

    def post_process(self, value: Any) -> float:
        if isinstance(value, bool):
            raise PostProcessingError(f"a number is wanted here, not {str(value).lower()}")
        return float(value)


# Dagster tells types of a form by its own names. `auto`, a word among numbers, is nothing there.
_KINDS: Mapping[str, Any] = {
    "strategy": dg.Enum("Strategy", [dg.EnumValue(name) for name in STRATEGIES]),
    "num_buckets": dg.Noneable(int),
    "token_budget": int,
    "slots_per_step": int,
    "epochs": int,
    "learning_rate": Number(),
    "num_ranks": int,
    "max_steps": dg.Noneable(int),
    "warm_start": dg.Enum("WarmStart", [dg.EnumValue(name) for name in STARTS]),
}
_EMPTY = {"num_buckets": "auto"}
"""What nothing means, where it is a word in the recipe."""
_FORM = {"num_buckets": "null: auto", "learning_rate": "write 1.0e-4, not 1e-4"}
"""What the form takes otherwise than the recipe's file."""


class ChosenSettings(dg.Shape):
    """Settings that one run has otherwise than its recipe, looked over as a recipe is, before the run exists."""

    def __new__(cls, workbench: Workbench) -> ChosenSettings:
        # Dagster keeps one plain Shape for equal fields; this one knows its recipe.
        made = object.__new__(cls)
        made._initialized = False
        return made

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        super().__init__(_fields(workbench))

    def post_process(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        settings = {name: _EMPTY.get(name) if item is None else item for name, item in value.items()}
        try:
            with_choices(self._workbench.recipe, settings)
        except Refused as error:
            raise PostProcessingError(str(error)) from None
        return settings


def workbench_of_the_run(workbench: Workbench) -> dg.ResourceDefinition:
    """The recipe and storage that assets work with: the location's, with what was chosen for this run."""

    def make(context: dg.InitResourceContext) -> Workbench:
        # Nothing at all for a run that was started without a form.
        return Workbench(
            recipe=with_choices(workbench.recipe, context.resource_config or {}), storage=workbench.storage
        )

    return dg.ResourceDefinition(
        make,
        config_schema=dg.Field(ChosenSettings(workbench)),
        description="The recipe. What is changed here holds for this run only; `dflash run --set` does the same.",
    )


def _fields(workbench: Workbench) -> dict[str, dg.Field]:
    return {name: _field(workbench, name) for name in CHOICES}


def _field(workbench: Workbench, name: str) -> dg.Field:
    value = chosen(workbench.recipe, name)
    default = None if value == _EMPTY.get(name) else value
    return dg.Field(
        _KINDS[name],
        is_required=False,
        default_value=default,
        description=_said(name, setting(workbench.recipe, name)),
    )


def _said(name: str, field: FieldInfo) -> str:
    """What a setting is for, and its bounds; words to choose from are in the form already."""
    bounds = allowed(field)
    notes = [note for note in ("" if bounds.startswith("one of") else bounds, _FORM.get(name, "")) if note]
    return f"{field.description} ({'; '.join(notes)})" if notes else field.description or ""
