"""Templates print what transformers prints, and reach nothing but the messages."""

from contextlib import suppress
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodWrapperType

import pytest
from jinja2 import TemplateError, Undefined
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import AutoTokenizer

from dflash_pipeline.ingest.sandbox import compiled
from dflash_pipeline.ingest.template import ChatTemplate

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "cases" / "fixtures"
PARTS = (
    "{% for m in messages %}{%- if m.reasoning_content %}[{{ m.reasoning_content }}|{{ m.x }}]{% endif -%}\n"
    "  {% if m.role == 'tool' %}{% continue %}{% endif %}{{ bos_token }}{{ m.content }}"
    "{{ (m.tool_calls or []) | tojson }}\n"
    "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}{{ dict(a=1) }}{{ tools | tojson(indent=2) }}"
    "{% set ns = namespace(n=2) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}{{ documents }}"
    "{% if add_generation_prompt %}>{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "é <b> & 'x'"},
    {"role": "user", "content": "hi"},
    {"role": "tool", "content": "not printed"},
    {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [{"function": {"name": "é<"}}]},
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(ROOT / "examples" / "target"))


@pytest.mark.parametrize(
    "template", [PARTS, *sorted(FIXTURES.glob("*.jinja"))], ids=lambda t: t.name if isinstance(t, Path) else "parts"
)
@pytest.mark.parametrize("prompt", [False, True])
def test_the_text_is_that_of_transformers(tokenizer, template, prompt):
    text = template if isinstance(template, str) else template.read_text(encoding="utf-8")
    ours = ChatTemplate(text=text, special_tokens=tokenizer.special_tokens_map)
    expected = tokenizer.apply_chat_template(
        MESSAGES, tools=[{"n": 1}], chat_template=text, add_generation_prompt=prompt, tokenize=False
    )
    assert ours.render(MESSAGES, '[{"n":1}]', where="here", prompt=prompt) == expected
    assert expected


def test_reasoning_is_found_under_its_other_name():
    """As in transformers from 5.24 on; of the versions before, some leave it out."""
    text = "{% for m in messages %}[{{ m.thinking }}|{{ m.reasoning }}]{% endfor %}"
    rendered = ChatTemplate(text=text, special_tokens={}).render(MESSAGES[3:], None, where="here", prompt=False)
    assert rendered == "[why|]"


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ dict.__init__ }}",
        "{{ dict.mro() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{% set ns = namespace(a=1) %}{% set ns._x = 1 %}",
        "{{ namespace(_x=1) }}",
        "{% include '/etc/passwd' %}",
        "{{ range(1000000) | list }}",
    ],
)
def test_nothing_else_can_be_reached(text):
    # What is not safe is either refused, or undefined and prints as nothing.
    with suppress(SecurityError, TemplateError, OverflowError, TypeError):
        assert compiled(text)(messages=[{"role": "user"}]) == ""


def test_a_value_may_be_called_self():
    assert compiled("{% set ns = namespace(self=3) %}{{ ns.self }}")() == "3"


@pytest.mark.parametrize(
    "value", [{"role": "user", "items": 1, "_x": 2}, "a text", ["a", "list"], 3, None, ("a",), {1}]
)
def test_an_attribute_of_a_plain_value_is_what_jinja_gives(value):
    """Found sooner, and the same: refused names included, whatever kind of value it is asked of."""
    jinja, ours = ImmutableSandboxedEnvironment(), compiled.__wrapped__("").__self__.environment
    names = {name for kind in (dict, str, list, int, tuple, set, type) for name in dir(kind)}
    for name in sorted(names | {"role", "absent", "_x", "__absent", "", "mro"}):
        expected, found = jinja.getattr(value, name), ours.getattr(value, name)
        assert type(found) is type(expected), name
        if not isinstance(found, FunctionType | BuiltinMethodType | MethodWrapperType):
            assert isinstance(found, Undefined) or found == expected, name
        if isinstance(found, Undefined):
            assert _refusal(found) == _refusal(expected), name


def _refusal(undefined):
    with pytest.raises((UndefinedError, SecurityError)) as caught:
        str(undefined + "")
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ '{0.__class__}'.format(1) }}",
        "{% for m in messages %}{{ loop._length }}{% endfor %}",
        "{% for m in messages %}{{ loop._iterable }}{{ loop.__class__ }}{% endfor %}",
        "{% set ns = namespace(a=raw) %}{{ ns.a(1) }}",
        "{% set ns = namespace(a='{0.__class__}'.format) %}{{ ns.a(1) }}",
        "{% set ns = namespace(a=1) %}{{ ns._Namespace__attrs }}{{ ns.__class__ }}",
        "{% for f in ['{0.__class__}'.format] %}{{ loop.previtem }}{{ f(1) }}{{ loop.nextitem }}{% endfor %}",
    ],
)
def test_the_short_way_reaches_nothing_more(text):
    with suppress(SecurityError, TemplateError):
        assert compiled(text)(messages=[{"role": "user"}], raw="{0.__class__}".format) == ""


def test_namespaces_loops_and_methods_print_what_jinja_prints():
    text = (
        "{% set ns = namespace(n=0, f=none) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}"
        "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ ns.n }}{{ ns.f }}{{ ns.absent }}"
        "{{ m.content.split('i')[-1].strip() }}{{ m.get('role') }}{{ m.items() | list }}{{ m.absent }}{{ m['role'] }}"
        "{{ ','.join(m) }}{{ '{}-{a}'.format(1, a=2) }}{{ loop.cycle('x', 'y') }}{% endfor %}"
    )
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(text)
    assert compiled(text)(messages=MESSAGES) == jinja.render(messages=MESSAGES) != ""
