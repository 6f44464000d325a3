"""Whether the target can be asked for answers: what can be known of it without asking."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_pipeline.answering.settings import key_from_environment
from dflash_pipeline.stages.preflight.fault import Fault, noted
from dflash_pipeline.stages.preflight.subject import Subject


def check_endpoint_key(subject: Subject) -> Iterator[Fault]:
    """The key that a server is to get is there. The server need not be: nothing may be left to ask it."""
    responses, faults = subject.recipe.responses, list[Fault]()
    if responses.enabled and responses.endpoint is not None:
        with noted(faults):
            key_from_environment(responses.endpoint.api_key_env)
    yield from faults
