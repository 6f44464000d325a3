"""A recipe's target as a renderer: its template and its thinking mode, the same wherever conversations are rendered."""

from __future__ import annotations

from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.recipe import Target


def target_renderer(target: Target) -> ChatRenderer:
    """Refused when the template cannot be followed, or knows nothing of the mode that is set."""
    return ChatRenderer(target.path, target.chat_template, thinking=target.enable_thinking)
