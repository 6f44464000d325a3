"""What a recipe says of the target's answers: how they are sampled, and who computes them."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from dflash_pipeline.recipe.section import Section


class Endpoint(Section):
    """A server with OpenAI's interface (vLLM, SGLang) that serves the target."""

    url: str = Field(description="Its address as far as `/v1`. No part of an answer's identity.")
    model: str = Field(min_length=1, description="The target's name there, as `/v1/models` lists it.")
    api: Literal["completions", "chat"] = Field(
        "completions",
        description="`completions` sends the tokens of our own rendering. `chat` lets the server render.",
    )
    api_key_env: str | None = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="The environment variable that holds the key."
    )
    concurrency: int = Field(16, ge=1, le=1024, description="Requests under way at once.")
    timeout_seconds: float = Field(600.0, gt=0, le=86_400, description="Longest wait for one whole answer.")
    retries: int = Field(5, ge=0, le=100, description="Further tries after one that brought no answer.")
    first_pause_seconds: float = Field(
        0.5, gt=0, le=3600, description="Before the second try; doubled each time, less up to a half by chance."
    )
    longest_pause_seconds: float = Field(60.0, gt=0, le=3600, description="Also bounds what the server asks for.")
    max_failed: float = Field(
        0.01, ge=0, le=1, description="A larger share of prompts without an answer, by failures, fails the stage."
    )

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018  # Raises for one that is no number.
        except ValueError:
            raise ValueError("not an address") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give an address such as http://localhost:8000/v1")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError("an address without user, password, query and fragment; a key goes into api_key_env")
        return url.rstrip("/")


class Responses(Section):
    """Answers by the target itself, in place of those of the files: what the drafter must learn to predict."""

    enabled: bool = Field(True, description="Whether the target answers; false: the answers in the files are learned.")
    max_new_tokens: int = Field(2048, ge=1, description="Longest answer; a longer one is kept without an end marker.")
    batch_size: int = Field(64, ge=1, description="Prompts decoded together; results are saved after each batch.")
    temperature: float = Field(0.0, ge=0, le=10, description="0: greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample among the likeliest tokens that hold this probability.")
    top_k: int | None = Field(None, ge=1, description="Sample among so many tokens; null for all.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of sampling; each prompt draws by it and its own text.")
    endpoint: Endpoint | None = Field(None, description="Null: the target is loaded in this process.")

    @model_validator(mode="after")
    def _sampled(self) -> Responses:
        if self.temperature == 0 and (self.top_p < 1 or self.top_k is not None or self.seed):
            raise ValueError(
                "temperature 0 is greedy: top_p, top_k and seed do nothing; set a temperature or leave them"
            )
        return self
