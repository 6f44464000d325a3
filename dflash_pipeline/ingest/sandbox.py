"""The environment in which chat templates run: that of transformers' `apply_chat_template`, without transformers.

Templates come with models from strangers. They see the messages and nothing else, and change nothing. Written again
here because a process that only renders need not load transformers, and because its checks of arguments cost as much
as a short conversation does; a test holds both to the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from types import BuiltinMethodType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


@lru_cache(maxsize=8)
def compiled(text: str) -> Callable[..., str]:
    """A template as a function of its variables. `jinja2.TemplateError` when it cannot be parsed."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(text).render


class _GenerationTag(Extension):
    """`{% generation %}` marks what the model wrote; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012  # Declared so by jinja.

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own: what the body sets does not leave it.
        return [nodes.Scope(body)]


class _Dict:
    """`dict(…)` and `dict.fromkeys(…)`, and nothing else of the type."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """A namespace without names that begin with an underscore: those lead to Python's own."""

    # `self` without a name, so that a template may have a value called self.
    def __init__(*args: Any, **values: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **values)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """The same answers, sooner where the values are plain: messages are dictionaries, lists and texts, and no more.

    What jinja would say of a plain type is asked once. Everything else takes jinja's own way.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _NAMES_OF_DICT:
            value = obj.get(attribute, _ABSENT)
            return value if value is not _ABSENT else self.undefined(obj=obj, name=attribute)
        if attribute in _SAFE.get(kind, ()):
            return getattr(obj, attribute)
        if (kind is LoopContext or kind is _Namespace) and not attribute.startswith("_"):
            value = getattr(obj, attribute, _ABSENT)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)

    # The names before the slash are no keywords: a template's function may have an argument called self.
    def call(self, context: Context, obj: Any, /, *args: Any, **values: Any) -> Any:
        if obj is _Namespace or (type(obj) is BuiltinMethodType and type(obj.__self__) is str):
            # What the compiled template adds for functions that ask for its variables.
            values.pop("_loop_vars", None)
            values.pop("_block_vars", None)
            return obj(*args, **values)
        return super().call(context, obj, *args, **values)


def _safe_names(kind: type) -> frozenset[str]:
    """Attributes of a plain type that jinja gives away as they are."""
    asked, one = ImmutableSandboxedEnvironment(), kind()
    values = {name: getattr(one, name) for name in dir(kind)}
    return frozenset(
        name
        for name, value in values.items()
        if asked.is_safe_attribute(one, name, value) and asked.wrap_str_format(value) is None
    )


_ABSENT = object()
_NAMES_OF_DICT = frozenset(dir(dict))
_SAFE = {kind: _safe_names(kind) for kind in (str, dict, list)}
_PLAIN = frozenset({bool, int, str, type(None)})


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: the name begins with an underscore")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
