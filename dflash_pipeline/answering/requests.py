"""What is asked: a prompt, how its answer is sampled, and the body of the request that says so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_pipeline.contracts.errors import ContractBroken


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How an answer is drawn: greedily at temperature 0."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1 or (self.top_k or 1) < 1:
            raise ContractBroken(f"{self}", where="responses", fix="give settings as recipe/responses.py bounds them")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One prompt in both forms: rendered by us, and as the messages it was rendered from."""

    text: str
    token_ids: Sequence[int]
    messages: Sequence[Mapping[str, Any]]


def completion_body(prompt: Prompt, model: str, sampling: Sampling) -> dict[str, Any]:
    """Of `/v1/completions`. Token ids leave the server nothing to render and nothing to add."""
    return {"model": model, "prompt": list(prompt.token_ids), **_sampled(prompt, sampling)}


def chat_body(prompt: Prompt, model: str, sampling: Sampling, *, thinking: bool | None) -> dict[str, Any]:
    """Of `/v1/chat/completions`: the server renders, told of the same thinking mode."""
    told = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking, "thinking": thinking}}
    return {"model": model, "messages": list(prompt.messages), **told, **_sampled(prompt, sampling)}


def prompt_seed(seed: int, text: str) -> int:
    """A seed of its own for each prompt, below 2^31: what it draws hangs on no other prompt."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{text}".encode()).digest()[:4], "big") >> 1


def _sampled(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    # Said in full: what is left open, a server fills in from the target's own generation_config.json, and a repetition
    # penalty would make its answers other than the text that verification accepts.
    said: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n": 1,
        "stream": False,
    }
    return said | ({"seed": prompt_seed(sampling.seed, prompt.text)} if sampling.temperature > 0 else {})
