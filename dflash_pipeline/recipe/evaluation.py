"""What a recipe says of measuring a drafter."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dflash_pipeline.recipe.section import Section


class Evaluation(Section):
    """Real draft-and-verify decoding on prompts that were not trained on."""

    prompts: Path | None = Field(
        None, description="JSONL with messages, question, prompt or turns; null for the validation side."
    )
    num_prompts: int = Field(64, ge=1, description="The first of them are used.")
    max_new_tokens: int = Field(64, ge=1, description="Longest answer that is decoded; several blocks at least.")
    num_processes: int = Field(1, ge=1, description="Prompts are shared out among this many processes.")
    batch_size: int = Field(16, ge=1, description="Prompts that a process decodes together.")
    temperature: float = Field(0.0, ge=0, description="0: greedy, and compared with the target's own text.")
    seed: int = Field(0, ge=0, description="Of what is drawn at a temperature.")
    cost_ratio: float | None = Field(
        None, gt=0, description="Time of a draft over time of a target pass for one token; null: no speed-up is told."
    )
