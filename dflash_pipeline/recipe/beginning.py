"""The text of a first recipe: sources and target, and what most runs change as comments with their sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe.choices import CHOICES
from dflash_pipeline.recipe.data import Data, Source, Target
from dflash_pipeline.recipe.explained import Explained, explained
from dflash_pipeline.recipe.text import in_words, read_yaml
from dflash_pipeline.recipe.whole import Recipe

_HEAD = """\
# Conversations in, a drafter out. Paths are relative to this file.
# Every setting with its sentence: dflash explain {file}
"""
_MAPPING = """\
      # Which field holds what, where names do not tell:
      # map: {user: question, assistant: answer}
"""
_CHOICES = """\

# What most runs change, as it holds now. A section counts once its own line and a setting's have lost their mark.
"""


def first_recipe(*, file: str, name: str, sources: Sequence[str], target: str) -> str:
    """YAML that `load_recipe` takes as it stands. Refuses what no recipe may say."""
    entries = "".join(f"    - path: {_scalar(path)}\n" for path in sources)
    text = (
        _HEAD.format(file=file)
        + f"name: {_scalar(name)}\n\ndata:\n  sources:\n{entries}{_MAPPING}"
        + f"\ntarget:\n  path: {_scalar(target)}\n"
        + _CHOICES
        + "\n".join(_section(section) for section in dict.fromkeys(section for section, _ in CHOICES.values()))
    )
    try:
        Recipe.model_validate(read_yaml(text))
    except ValidationError as error:
        raise Refused("; ".join(in_words(error, Recipe)), where=file, fix="give another --name or --source") from None
    return text


def _section(section: str) -> str:
    keys = [key for there, key in CHOICES.values() if there == section]
    return f"# {section}:\n" + "".join(_lines(_defaults()[f"{section}.{key}"]) for key in keys)


def _lines(setting: Explained) -> str:
    says = " ".join(part for part in (setting.sentence, f"({setting.allowed})" if setting.allowed else "") if part)
    key = setting.name.rpartition(".")[2]
    return (f"#   # {says}\n" if says else "") + f"#   {key}: {_scalar(setting.default)}\n"


def _defaults() -> dict[str, Explained]:
    recipe = Recipe(name="any", data=Data(sources=[Source(path=Path("any"))]), target=Target(path=Path("any")))
    return {setting.name: setting for setting in explained(recipe)}


def _scalar(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("...\n").strip()
