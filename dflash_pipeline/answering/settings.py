"""Where a server is, how it is asked, and how patient one is with it."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Literal

from dflash_pipeline.contracts.errors import ContractBroken, Refused

Api = Literal["completions", "chat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long one answer may take, how often it is asked for again, and how long one waits in between."""

    timeout_seconds: float
    """For one try, from the request to the reply's last byte."""
    retries: int
    first_pause_seconds: float
    longest_pause_seconds: float

    def __post_init__(self) -> None:
        if (
            self.timeout_seconds <= 0
            or self.retries < 0
            or min(self.first_pause_seconds, self.longest_pause_seconds) <= 0
        ):
            raise ContractBroken(f"{self}", where="responses.endpoint", fix="give times above 0, and retries from 0")

    def pause(self, tries: int, *, asked_for: float | None, chance: random.Random) -> float:
        """Seconds to wait after so many tries (from 1): doubled each time, less up to a half by chance.

        What the server asks for is kept, up to the longest pause.
        """
        doubled = self.first_pause_seconds * 2.0 ** min(tries - 1, 60)
        own = min(doubled, self.longest_pause_seconds) * (1 - chance.random() / 2)
        return own if asked_for is None else min(max(own, asked_for), self.longest_pause_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """A server, and the name that the target has there."""

    url: str
    """As far as `/v1`, without a slash at the end."""
    model: str
    api: Api
    patience: Patience
    concurrency: int
    key: str | None = field(default=None, repr=False)
    """Goes into one header, and nowhere else."""

    def without_key(self, text: str) -> str:
        """A text that came from the server, fit to be shown: it may repeat what it was sent."""
        return text.replace(self.key, "(key)") if self.key else text


def key_from_environment(name: str | None) -> str | None:
    """The key that a variable holds; refused by the variable's name when there is none, or none that a header takes."""
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise Refused(
            f"the environment variable {name} holds {'no usable' if key else 'no'} key",
            where="responses.endpoint.api_key_env",
            fix=f"export {name}, or leave api_key_env out for a server without keys",
        )
    return key
