"""Whether the drafter that the recipe asks for can begin with the champion's weights."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_pipeline.stages.preflight.fault import Fault, noted
from dflash_pipeline.stages.preflight.subject import Subject
from dflash_pipeline.stages.warm_start import champion_to_begin_with, start_from


def check_champion(subject: Subject) -> Iterator[Fault]:
    """Its shape and its files, where a first run of this drafter would begin with it."""
    if subject.drafter is None:
        return
    faults: list[Fault] = []
    with noted(faults):
        champion = champion_to_begin_with(subject.recipe, subject.storage, subject.drafter)
        if champion is not None:
            start_from(subject.storage, champion, subject.drafter)
    yield from faults
