"""Loading a target from a local folder: safetensors only, none of its own code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
)
from transformers.utils import logging as transformers_logging

from dflash_pipeline.contracts.errors import Refused, refusing
from dflash_pipeline.model.target_files import check_target_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Dtype = Literal["float32", "bfloat16", "float16"]

_FIX = "give the folder of a causal model as save_pretrained writes it, of a kind that this transformers knows"


def load_causal_lm(path: Path, *, device: str = "cpu", dtype: Dtype = "float32") -> PreTrainedModel:
    """The target's whole model, in evaluation mode."""
    check_target_folder(path)
    transformers_logging.disable_progress_bar()  # Loading is no stage of ours; its bar would break the one of a stage.
    with refusing("no causal model can be loaded", where=str(path), fix=_FIX):
        model = AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
        )
    model.to(torch.device(device))  # type: ignore[arg-type]
    return model.eval()


def load_config(path: Path) -> PreTrainedConfig:
    """The target's config.json, as transformers understands it."""
    check_target_folder(path)
    with refusing("no model config can be read", where=str(path / "config.json"), fix=_FIX):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def stop_token_ids(path: Path) -> frozenset[int]:
    """Tokens at which the target ends its answer, from its generation settings or its config."""
    given = load_config(path).get_text_config(decoder=True).eos_token_id
    settings = path / "generation_config.json"
    if settings.is_file():
        with refusing("no generation settings can be read", where=str(settings), fix=_FIX):
            given = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id or given
    if given is None:
        raise Refused(
            "neither generation_config.json nor config.json names an end token",
            where=str(path),
            fix="give eos_token_id; without it no answer ends",
        )
    return frozenset(given if isinstance(given, list) else [given])
