"""A recipe from its file and what the command line changes in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe.text import in_words, read_yaml
from dflash_pipeline.recipe.whole import Recipe


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `overrides` are `section.key=value` with values in YAML. Refuses with every fault at once."""
    form = "see recipes/demo.yaml for the form"
    try:
        raw = read_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused("there is no such recipe", where=str(path), fix="give the path of a YAML file") from None
    except (ValueError, OSError) as error:
        raise Refused(f"not readable as YAML: {error}", where=str(path), fix=form) from None
    if not isinstance(raw, dict):
        raise Refused("not a mapping of sections", where=str(path), fix=form)
    for override in overrides:
        _apply(raw, override)
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        fix = "correct the recipe or the --set value" if overrides else "correct the recipe"
        raise Refused("; ".join(in_words(error, Recipe)), where=str(path), fix=fix) from None
    return _resolved(recipe, path.resolve().parent)


def _apply(raw: dict[str, Any], override: str) -> None:
    key, sign, value = override.partition("=")
    if not sign or not key.strip():
        raise Refused(f"{override!r} is not key=value", where="--set", fix="write for example --set batching.seed=7")
    *sections, last = key.strip().split(".")
    here: Any = raw
    for section in sections:
        here = _step_into(here, section)
    place: Any = _index(here, last) if isinstance(here, list) else last if isinstance(here, dict) else None
    if place is None:
        raise Refused(f"{key} does not lead into the recipe", where="--set", fix="name sections as in the recipe file")
    try:
        here[place] = read_yaml(value)
    except ValueError:
        raise Refused(
            f"the value of {key} is not YAML", where="--set", fix="quote it as you would in a recipe"
        ) from None


def _step_into(here: Any, section: str) -> Any:
    """The section of that name, made when the recipe leaves it out; of a list, the item of that number."""
    if isinstance(here, list):
        number = _index(here, section)
        return None if number is None else here[number]
    return here.setdefault(section, {}) if isinstance(here, dict) else None


def _index(items: list[Any], text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) < len(items) else None


def _resolved(recipe: Recipe, folder: Path) -> Recipe:
    def at(path: Path) -> Path:
        return (folder / path).resolve()

    data = recipe.data.model_copy(
        update={"sources": [s.model_copy(update={"path": at(s.path)}) for s in recipe.data.sources]}
    )
    template = recipe.target.chat_template
    target = recipe.target.model_copy(
        update={"path": at(recipe.target.path), "chat_template": at(template) if template else None}
    )
    prompts = recipe.evaluation.prompts
    evaluation = recipe.evaluation.model_copy(update={"prompts": at(prompts) if prompts else None})
    return recipe.model_copy(update={"data": data, "target": target, "evaluation": evaluation})
