"""Conversations to the exact text the target sees, by its own chat template, and what of it the model wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from dflash_pipeline.contracts.conversation import Conversation, Message
from dflash_pipeline.contracts.errors import Refused, refusing
from dflash_pipeline.contracts.fingerprint import fingerprint
from dflash_pipeline.contracts.sample import DropReason
from dflash_pipeline.ingest.spans import Span, TurnForm, find_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MASK_RULE = 1
"""Part of every template's identity: raised when other characters become supervised."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_PROBE = (Message(role="user", content="Hello?"), Message(role="assistant", content="Yes."))
# What an expression in a template can raise, beside jinja's own errors.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
# A template that prints today's date would make other tokens tomorrow, under the same fingerprint.
_FIXED_DATE = (
    '{%- macro strftime_now(format) -%}{{ {"%d %b %Y": "26 Jul 2024"}.get(format, "2024-07-26") }}{%- endmacro -%}'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A conversation as text. `spans` are the supervised characters, one span an assistant turn, ascending."""

    text: str
    spans: tuple[Span, ...]


class NotRendered(Refused):
    """One conversation that the template refuses, or whose assistant turns cannot be followed through it."""

    def __init__(self, what: str, *, where: str, fix: str, reason: DropReason) -> None:
        super().__init__(what, where=where, fix=fix)
        self.reason: DropReason = reason


class ChatRenderer:
    """Renders by a target's tokenizer folder, or by a Jinja file in place of the folder's template.

    The text carries every special token: tokenise it without adding any. A template that cannot be followed at all is
    refused here; one conversation that cannot, in `render`.
    """

    def __init__(self, folder: Path, template: Path | None = None) -> None:
        self.tokenizer = load_tokenizer(folder)
        self._template = _template_text(self.tokenizer, folder, template)
        self._where = f"chat template {template or folder}"
        self._form = self._probed(_configured_ends(self.tokenizer, folder))
        self.tokenizer_fingerprint = fingerprint(files=_digests(folder))
        self.template_fingerprint = fingerprint(template=self._template, form=self._form, rule=MASK_RULE)

    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation and its supervised characters, at a cost linear in its length."""
        where = f"conversation {conversation.conversation_id!r}, {conversation.file} line {conversation.line}"
        return self._rendered(conversation.messages, conversation.tools, where, self._form)

    def prompt(self, messages: Sequence[Message], *, tools: str | None = None) -> str:
        """The text after which the target answers: these messages, then the generation prompt."""
        where = f"{self._where}, prompt of {len(messages)} messages"
        return self._text(_as_dicts(messages), tools, where, prompt=True)

    def _rendered(self, messages: Sequence[Message], tools: str | None, where: str, form: TurnForm) -> Rendered:
        dicts = _as_dicts(messages)
        plain = self._text(dicts, tools, where)
        cut = frozenset(i for i, message in enumerate(messages) if not message.complete)
        spans = find_spans(dicts, lambda marked: self._text(marked, tools, where), plain, form=form, cut=cut)
        if spans is None:
            raise NotRendered(
                "the chat template rewrites the assistant's words, so that they cannot be found in its text",
                where=where,
                fix="give a template that prints each answer once, as `target.chat_template` in the recipe",
                reason="spans_not_found",
            )
        # After an answer that was cut, the template's end marker would be a lie about the model.
        text = plain if messages[-1].complete or not spans else plain[: spans[-1][1]]
        return Rendered(text=text, spans=spans)

    def _text(self, dicts: list[dict[str, Any]], tools: str | None, where: str, *, prompt: bool = False) -> str:
        try:
            # A sandboxed environment without access to anything but the messages: transformers' own.
            text = self.tokenizer.apply_chat_template(
                dicts,
                tools=None if tools is None else json.loads(tools),
                chat_template=self._template,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except _TEMPLATE_ERRORS as error:
            raise NotRendered(
                f"the chat template fails: {error}",
                where=where,
                fix="correct the conversation, or give another template as `target.chat_template` in the recipe",
                reason="template_error",
            ) from None
        return str(text)

    def _probed(self, configured: set[str]) -> TurnForm:
        """Learn from the smallest conversation how the template opens and closes an answer."""
        rendered = self._rendered(_PROBE, None, self._where, TurnForm(headers=(), end_markers=()))
        if not rendered.spans:
            raise Refused(
                "the chat template prints nothing of an assistant's turn",
                where=self._where,
                fix="give one that does, as `target.chat_template` in the recipe",
            )
        after = rendered.text[rendered.spans[0][1] :]
        added = (token.content for token in self.tokenizer.added_tokens_decoder.values())
        following = max((t for t in added if t.strip() and after.startswith(t)), key=len, default=None)
        ends = configured | ({following} if following else set())

        asked = self._text(_as_dicts(_PROBE[:1]), None, self._where)
        opened = self.prompt(_PROBE[:1])
        header = opened.removeprefix(asked) if opened.startswith(asked) else ""
        # Some prompts open the thought already; in earlier turns the same header stands without it.
        shorter = header.partition("<think>")[0]
        headers = [h for h in dict.fromkeys((header, shorter)) if h.strip()]
        return TurnForm(headers=tuple(headers), end_markers=tuple(sorted(ends, key=lambda t: (-len(t), t))))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """A fast tokenizer from a local folder; runs no code of the folder's and asks no network."""
    # Imported here: it takes seconds, and who only reads the names of this module should not wait.
    from transformers import AutoTokenizer

    fix = "give the folder of a model in Hugging Face format, with its tokenizer.json"
    # Without any of these transformers makes up an empty tokenizer, or asks for a name on the network.
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise Refused(
            f"no tokenizer can be read: there is none of {', '.join(_VOCABULARIES)}", where=str(folder), fix=fix
        )
    with refusing("no tokenizer can be read", where=str(folder), fix=fix):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise Refused("a tokenizer that cannot tell which characters a token stands for", where=str(folder), fix=fix)
    return tokenizer


def _template_text(tokenizer: PreTrainedTokenizerBase, folder: Path, template: Path | None) -> str:
    fix = "name a Jinja file as `target.chat_template` in the recipe"
    try:
        text = template.read_text(encoding="utf-8") if template else tokenizer.get_chat_template()
    except (OSError, ValueError) as error:
        raise Refused(f"no chat template: {error}", where=str(template or folder), fix=fix) from None
    return _FIXED_DATE + text if "strftime_now" in text else text


def _digests(folder: Path) -> dict[str, str]:
    paths = [folder / name for name in _TOKENIZER_FILES]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}


def _configured_ends(tokenizer: PreTrainedTokenizerBase, folder: Path) -> set[str]:
    """The tokens at which generation stops: the tokenizer's, and those of the model's generation settings."""
    ends = {tokenizer.eos_token} if tokenizer.eos_token else set()
    settings = folder / "generation_config.json"
    if settings.is_file():
        with refusing("no generation settings can be read", where=str(settings), fix="correct its eos_token_id"):
            ids = json.loads(settings.read_text(encoding="utf-8")).get("eos_token_id") or []
            ends.update(tokenizer.convert_ids_to_tokens(ids if isinstance(ids, list) else [ids]))
    return {end for end in ends if end}


def _as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_as_dict(message) for message in messages]


def _as_dict(message: Message) -> dict[str, Any]:
    seen: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        seen["reasoning_content"] = message.reasoning
    if message.tool_calls is not None:
        seen["tool_calls"] = [_with_parsed_arguments(call) for call in json.loads(message.tool_calls)]
    return seen


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    # Interfaces carry arguments as JSON inside a string; servers parse it before the template prints it as JSON.
    inner = call.get("function", call)
    if not isinstance(inner, dict) or not isinstance(inner.get("arguments"), str):
        return call
    try:
        arguments = json.loads(inner["arguments"])
    except json.JSONDecodeError:
        return call
    parsed = {**inner, "arguments": arguments} if isinstance(arguments, dict) else inner
    return {**call, "function": parsed} if "function" in call else parsed
