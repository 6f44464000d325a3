"""Answers by the target itself: the text a drafter must learn to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from transformers import GenerationConfig

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.fingerprint import fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ANSWER_VERSION = 1
"""Part of every answer's identity: raised when the same target and prompt would be answered otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSettings:
    """How the target answers, at most so many tokens: greedily at temperature 0, and here or by a server."""

    max_new_tokens: int
    batch_size: int
    """Prompts decoded together: a matter of memory, no part of an answer's identity."""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int = 0
    """Of what is drawn, with the prompts that are decoded together."""
    served: str | None = None
    """The interface and the model's name on a server; None for this process. Numerics differ between the two."""
    served_thinking: bool | None = None
    """What a server that renders was told of thinking; None for nothing."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.batch_size < 1:
            raise ContractBroken(
                f"max_new_tokens {self.max_new_tokens}, batch_size {self.batch_size}",
                where="responses",
                fix="each must be at least 1",
            )
        if self.temperature < 0 or not 0 < self.top_p <= 1 or (self.top_k is not None and self.top_k < 1):
            raise ContractBroken(
                f"temperature {self.temperature}, top_p {self.top_p}, top_k {self.top_k}",
                where="responses",
                fix="temperature is at least 0, top_p above 0 and at most 1, top_k at least 1 or left out",
            )

    @property
    def fingerprint(self) -> str:
        # Named only where they do something: greedy answers of this process keep the name they always had.
        drawn = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "seed": self.seed}
        served = {"served": self.served, "served_thinking": self.served_thinking}
        return fingerprint(
            max_new_tokens=self.max_new_tokens,
            version=ANSWER_VERSION,
            **(drawn if self.temperature > 0 else {}),
            **(served if self.served is not None else {}),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the target wrote after one prompt; empty when it ended at once."""

    text: str
    """Without special tokens, and without the bytes of a character that was cut."""
    complete: bool
    """The target ended it itself, within the limit."""


def answer_prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], settings: AnswerSettings
) -> list[Answer]:
    """One answer a prompt, in their order. Prompts hold their special tokens already, as a template prints them."""
    ends = _end_ids(model, tokenizer)
    rows = [_prompt_ids(tokenizer, prompt) for prompt in prompts]
    answers: list[Answer] = []
    for first in range(0, len(rows), settings.batch_size):
        written = _generate(model, rows[first : first + settings.batch_size], settings, ends)
        answers += [_answer(tokenizer, ids, ends) for ids in written]
    return answers


def _end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    given = model.generation_config.eos_token_id
    if given is None:
        given = tokenizer.eos_token_id
    if given is None:
        raise Refused(
            "neither the target's generation settings nor its tokenizer names an end token",
            where=f"target {model.config.name_or_path or model.config.model_type}",
            fix="give eos_token_id in generation_config.json; without it no answer ends",
        )
    return list(given) if isinstance(given, list | tuple) else [int(given)]


def _prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    ids: list[int] = tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise Refused("an empty prompt", where="target's answers", fix="render prompts with the target's chat template")
    return ids


@torch.inference_mode()
def _generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], settings: AnswerSettings, ends: Sequence[int]
) -> list[list[int]]:
    # Padded on the left, so that every row goes on from its last column. What the padding is does not matter under the
    # mask, as long as it is a token of the model's.
    longest = max(map(len, prompts))
    input_ids = torch.full((len(prompts), longest), ends[0], dtype=torch.long)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(prompts):
        input_ids[row, longest - len(ids) :] = torch.tensor(ids)
        attention_mask[row, longest - len(ids) :] = 1
    # By the seed and these prompts alone: what was drawn before, in this process or in a killed one, changes nothing.
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(int(fingerprint(seed=settings.seed, prompts=[list(ids) for ids in prompts]), 16) >> 1)
        written = model.generate(  # type: ignore[operator]  # transformers gives it through a mixin
            input_ids=input_ids.to(model.device),
            attention_mask=attention_mask.to(model.device),
            generation_config=_generation(settings, ends),
        )
    return [row[longest:] for row in written.tolist()]


def _generation(settings: AnswerSettings, ends: Sequence[int]) -> GenerationConfig:
    # Said in full: what is left open, the target's own generation_config.json fills in, and a repetition penalty would
    # make its answers other than the text that verification accepts.
    drawn = settings.temperature > 0
    return GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        do_sample=drawn,
        num_beams=1,
        temperature=settings.temperature if drawn else 1.0,
        top_p=settings.top_p,
        top_k=50 if not drawn else settings.top_k or 0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        eos_token_id=list(ends),
        pad_token_id=ends[0],
    )


def _answer(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], ends: Sequence[int]) -> Answer:
    written = list(takewhile(lambda token: token not in ends, ids))
    complete = len(written) < len(ids)
    text = str(tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    # A limit in the middle of a character leaves bytes that decode to replacement characters.
    return Answer(text=text if complete else text.rstrip("\ufffd"), complete=complete)
