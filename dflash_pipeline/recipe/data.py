"""What a recipe says of conversations and the target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dflash_pipeline.recipe.section import Section

Mapped = Literal["system", "user", "assistant", "messages", "text", "tools", "id"]
Format = Literal["jsonl", "json", "parquet", "csv", "tsv", "lines", "document"]
"""`lines`: raw text, a document a line. `document`: a file that is one document."""


class Source(Section):
    """Where rows come from."""

    path: Path = Field(description="A file, a folder or a pattern. The name of a file that exists is meant literally.")
    map: dict[Mapped, str] = Field(
        default_factory=dict,
        description="Which field holds what, for rows whose field names are not known; empty to tell by the names.",
    )
    format: Format | None = Field(
        None, description="Null to tell by the content. `lines`: a text document a line; `document`: the whole file."
    )
    weight: float = Field(
        1.0, gt=0, le=100, description="How often each training conversation stands in the snapshot; 0.5: half of them."
    )


class Data(Section):
    """Which conversations, and how they are cut."""

    sources: Annotated[list[Source], Field(min_length=1, description="Where rows come from, each with a path.")]
    max_rows: int | None = Field(None, ge=1, description="Use only the first rows of each file; null for all.")
    max_row_bytes: int = Field(64 * 2**20, ge=1, description="A longer row is rejected as row_too_large.")
    max_depth: int = Field(64, ge=1, le=256, description="Brackets inside brackets; a deeper row is rejected.")
    max_unpacked_bytes: int = Field(2**36, ge=1, description="A compressed file that unpacks to more is not taken.")
    max_unpacked_ratio: float = Field(
        200.0, ge=1, description="Nor one that unpacks to this many times its size, and to more than 16 MiB."
    )
    rejection_warn: float = Field(
        0.05, ge=0, le=1, description="A larger share of rejected rows is warned of; prompts to be answered aside."
    )
    rejection_block: float = Field(0.5, ge=0, le=1, description="A larger share stops what comes after.")
    validation_fraction: float = Field(
        0.02, ge=0, le=0.5, description="Share of conversations held out, by a hash of the first user message."
    )
    max_length: int = Field(8192, ge=2, description="Longest sample in tokens.")
    overlong: Literal["truncate", "drop"] = Field(
        "truncate", description="What happens to a longer sample at tokenisation."
    )
    supervise: Literal["all", "last"] = Field("all", description="Which assistant turns carry the loss.")
    supervise_thinking: bool = Field(True, description="Whether thoughts carry it too, with the tags around them.")
    supervise_generation_prefix: bool = Field(
        False, description="Whether what the prompt or template opens after the role header (`<think>`) carries it."
    )
    thinking: Literal["one", "mixed"] = Field(
        "one", description="Whether answers with thoughts and answers without may stand in one snapshot."
    )
    processes: int | None = Field(None, ge=1, description="Processes that tokenise; null for one a core.")


def _spelled(value: object) -> object:
    # To YAML, on and off are true and false.
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


class Target(Section):
    """The large model that is served."""

    path: Path = Field(description="A folder in Hugging Face format: config, weights, tokenizer, chat template.")
    chat_template: Path | None = Field(None, description="A Jinja file to use instead of the target's own template.")
    thinking: Annotated[Literal["on", "off", "template"], BeforeValidator(_spelled)] = Field(
        "template",
        description="What the template is told as `enable_thinking`, in answering, tokenisation and evaluation alike; "
        "`template`: nothing.",
    )

    @property
    def enable_thinking(self) -> bool | None:
        return None if self.thinking == "template" else self.thinking == "on"
