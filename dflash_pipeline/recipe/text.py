"""YAML in, sentences out: a recipe's text read strictly, and what is wrong with it said in words."""

from __future__ import annotations

import difflib
from collections.abc import Hashable
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError


def read_yaml(text: str) -> Any:
    """The document of a YAML text. Whatever is wrong with it is a ValueError of one line."""
    try:
        return yaml.load(text, _Strict)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{error.problem or 'unreadable'}{line}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


class _Strict(yaml.SafeLoader):
    """Plain values only, and no key twice: YAML would keep the last of two and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def in_words(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Every fault as `section.key: what is wrong`."""
    return [f"{_name(fault['loc'])}: {_fault(fault, model)}" for fault in error.errors()]


def _name(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in place) or "recipe"


def _fault(fault: Any, model: type[BaseModel]) -> str:
    kind, given = fault["type"], fault["input"]
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return _unknown(fault["loc"], model)
    if kind == "value_error":
        return str(fault["msg"]).removeprefix("Value error, ")
    message = str(fault["msg"])
    shown = isinstance(given, str | int | float | bool) and "not" not in message
    return message[0].lower() + message[1:] + (f", not {given!r:.60}" if shown else "")


def _unknown(place: tuple[int | str, ...], model: type[BaseModel]) -> str:
    known = _settings(model, place[:-1])
    near = difflib.get_close_matches(str(place[-1]), known, n=1)
    if near:
        return f"there is no such setting; {near[0]} is meant?"
    return f"there is no such setting, only {', '.join(known)}" if known else "there is no such setting"


def _settings(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Names of the settings in a section. The items of a list are one section."""
    kind: Any = model
    for part in place:
        if isinstance(part, int):
            [kind] = get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[part].annotation
    return sorted(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
