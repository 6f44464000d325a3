"""Every setting of a recipe by its dotted name: what holds, what would hold without it, its bounds and its sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dflash_pipeline.recipe.section import types_of

_SIGNS = {Ge: ("at least", "ge"), Gt: ("above", "gt"), Le: ("at most", "le"), Lt: ("below", "lt")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One setting; values are as YAML has them."""

    name: str
    value: Any
    default: Any
    """None, too, for what has no default."""
    required: bool
    allowed: str
    """Bounds or words, as far as the declaration alone says."""
    sentence: str

    @property
    def changed(self) -> bool:
        return self.required or self.value != self.default


def explained(recipe: BaseModel) -> tuple[Explained, ...]:
    """All settings, in the order of their declaration. A list counts as one setting."""
    return tuple(_of(recipe, ()))


def _of(section: BaseModel, place: tuple[str, ...]) -> Iterator[Explained]:
    plain = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _of(value, (*place, name))
        else:
            yield _setting(".".join((*place, name)), plain[name], field)


def _setting(name: str, value: Any, field: FieldInfo) -> Explained:
    required = field.is_required()
    return Explained(
        name=name,
        value=value,
        default=None if required else _plain(field.get_default(call_default_factory=True)),
        required=required,
        allowed=allowed(field),
        sentence=field.description or "",
    )


def _plain(value: Any) -> Any:
    """As `model_dump(mode="json")` has it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str | dict) else str(value)


def allowed(field: FieldInfo) -> str:
    """Words to choose from, or bounds; empty where the declaration names none."""
    words, bounds = _words(field.annotation), ", ".join(_bounds(field.annotation, field.metadata))
    if int in types_of(field.annotation):
        return ", or ".join(said for said in (bounds, *words) if said)
    return "one of " + ", ".join(words) if words else bounds


def _bounds(annotation: Any, metadata: Sequence[Any]) -> Iterator[str]:
    """Of a setting itself, then of the kinds that it may be; those of a list's items are left out."""
    for part in metadata:
        says, name = _SIGNS.get(type(part), ("", ""))
        # Larger ones are bounds of the machine, that nobody meets.
        if says and getattr(part, name) < 2**40:
            yield f"{says} {getattr(part, name)}"
    for kind in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        for inner in get_args(kind):
            yield from _bounds(None, inner.metadata if isinstance(inner, FieldInfo) else ())


def _words(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for inner in get_args(annotation) for word in _words(inner)]
