"""Whether the sources hold what can be trained on, judged by their first rows; and whether evaluation has prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dflash_pipeline.evaluation.prompts import read_prompts
from dflash_pipeline.stages.preflight.fault import Fault, noted
from dflash_pipeline.stages.preflight.sample import SourceSample
from dflash_pipeline.stages.preflight.subject import Subject

_TEMPLATE = "give a template that prints each answer once, as `target.chat_template` in the recipe"
_LENGTH = "raise data.max_length"
_FIXES = {
    "template_error": _TEMPLATE,
    "spans_not_found": _TEMPLATE,
    "control_text": "take control tokens out of the messages",
    "unknown_token": "give rows that were made with the target's own tokenizer",
    "too_long": _LENGTH,
    "no_supervised_tokens": f"{_LENGTH} if answers begin after it, or mark tokens that carry a loss",
    "too_few_supervised_tokens": f"{_LENGTH} if answers are cut by it, or give longer answers",
}


def check_sources(subject: Subject) -> Iterator[Fault]:
    """They exist, can be read, and hold rows of which not too many are rejected."""
    yield from subject.source_refusals
    for sample in subject.samples:
        if sample.unreadable and len(sample.unreadable) == sample.num_files_read:
            first = sample.unreadable[0]
            yield Fault(where=first.where, what=first.what, fix=first.fix)
        elif not sample.num_rows:
            yield Fault(where=sample.where, what="no row was found", fix="take it out of data.sources, or fill it")
        else:
            yield from _rejections(sample, subject)


def _rejections(sample: SourceSample, subject: Subject) -> Iterator[Fault]:
    # As the check `few_rows_rejected` counts: a prompt that the target will answer is not lost.
    lost = sample.num_rows - sample.num_taken - (sample.num_prompts if subject.recipe.responses.enabled else 0)
    most = subject.recipe.data.rejection_block
    if lost > most * sample.num_rows:
        yield Fault(
            where=sample.where,
            what=f"{lost:,} of the first {sample.num_rows:,} rows are rejected ({_counts(sample.rejected)}), more than "
            f"{most:.0%}",
            fix="correct the rows, name their fields in the source's `map`, or raise data.rejection_block",
        )


def check_coverage(subject: Subject) -> Iterator[Fault]:
    """Some tokens are supervised, and not all: of chats and tokens. Raw text is all supervised, by what it is."""
    for sample in subject.samples:
        all_forms = sample.all_forms
        if sample.dropped and not all_forms.num_supervised:
            worst = max(sample.dropped, key=lambda reason: sample.dropped[reason])
            yield Fault(
                where=sample.where,
                what=f"0 % of the tokens of its first rows are supervised ({_counts(sample.dropped)})",
                fix=_FIXES.get(worst, "look at the rows"),
            )
        if sample.chats.num_tokens and sample.chats.num_supervised == sample.chats.num_tokens:
            yield Fault(
                where=sample.where,
                what=f"100 % of the tokens of its first {sample.chats.num_samples:,} chats are supervised, prompts too",
                fix=_TEMPLATE,
            )
        if sample.tokenised.num_tokens and sample.tokenised.num_supervised == sample.tokenised.num_tokens:
            yield Fault(
                where=sample.where,
                what=f"100 % of the tokens of its first {sample.tokenised.num_samples:,} tokenised rows are supervised",
                fix="set loss_mask to 0, or labels to -100, where the model did not write; give raw text as `text`",
            )


def check_prompts(subject: Subject) -> Iterator[Fault]:
    """The file of prompts is there and holds prompts; without one, conversations are held out to be measured on."""
    prompts, renderer = subject.recipe.evaluation.prompts, subject.target.renderer
    faults: list[Fault] = []
    if prompts is not None and not prompts.is_file():
        fix = "correct evaluation.prompts, or leave it out"
        yield Fault(where=str(prompts), what="there is no such file", fix=fix)
    elif prompts is not None and renderer is not None:
        limit = subject.recipe.evaluation.num_prompts
        with noted(faults):
            read_prompts(prompts, render=renderer.prompt, tokenizer=renderer.tokenizer, limit=limit)
    elif prompts is None and (why := _why_nothing_is_held_out(subject)):
        fix = "name a file of prompts, or give chats and a data.validation_fraction above 0"
        yield Fault(where="evaluation.prompts", what=f"none is named, and {why}", fix=fix)
    yield from faults


def _why_nothing_is_held_out(subject: Subject) -> str | None:
    if subject.recipe.data.validation_fraction == 0:
        return "data.validation_fraction 0 holds no conversation out to measure on"
    forms = [sample for sample in subject.samples if sample.all_forms.num_samples]
    if forms and not any(sample.chats.num_samples for sample in forms):
        return "no source holds chats to measure on"
    return None


def _counts(reasons: Mapping[str, int]) -> str:
    listed = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} {reason}" for reason, number in listed[:3])
