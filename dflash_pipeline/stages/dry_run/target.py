"""A target's size from its config.json alone: no weights need lie there, and none are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from dflash_pipeline.contracts.errors import Refused, refusing


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSize:
    """What a rank holds of the target, and how wide it is."""

    config: PreTrainedConfig
    num_parameters: int
    """Tied ones once, as they are held in memory."""
    num_layer_parameters: int
    """Those of its decoder layers: without embedding table, output head and last norm."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int


def target_size(folder: Path) -> TargetSize:
    """Read `config.json` and count the parameters that transformers would make of it, without making them."""
    config = _config(folder)
    text = config.get_text_config(decoder=True)
    whole, in_layers = _num_parameters(config, folder)
    return TargetSize(
        config=config,
        num_parameters=whole,
        num_layer_parameters=in_layers,
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        vocab_size=text.vocab_size,
    )


def _config(folder: Path) -> PreTrainedConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise Refused(
            "there is no config.json",
            where=str(folder),
            fix="set target.path to the target's folder; for a dry run its config.json is enough",
        )
    with refusing("no model config can be read", where=str(path), fix="give the config.json of a causal model"):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _num_parameters(config: PreTrainedConfig, folder: Path) -> tuple[int, int]:
    """Of the whole model, and of its decoder layers."""
    import torch
    from transformers import AutoModelForCausalLM

    from dflash_pipeline.model.target import decoder_layers

    fix = "give a decoder-only causal language model that transformers knows"
    with refusing("no causal model is made of it", where=str(folder / "config.json"), fix=fix), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        modules = (model, decoder_layers(model))
    whole, in_layers = (sum(parameter.numel() for parameter in module.parameters()) for module in modules)
    return whole, in_layers
