"""A target's identity by the files that decide what it computes and reads. No torch here."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.fingerprint import fingerprint

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that make up a tokenizer, as far as a target has them."""


def target_fingerprint(path: Path) -> str:
    """Identity of a target: its config, weights and tokenizer, by content. Reads every weight once."""
    check_target_folder(path)
    names = {"config.json", *TOKENIZER_FILES, *(file.name for file in path.glob("*.safetensors"))}
    files = {name: _sha256(path / name) for name in sorted(names) if (path / name).is_file()}
    return fingerprint(target=files)


def check_target_folder(path: Path) -> None:
    """Refuse a folder that cannot hold a target: no config.json, or weights in another form than safetensors."""
    if not (path / "config.json").is_file():
        raise Refused("there is no config.json", where=str(path), fix="give the folder of a Hugging Face causal model")
    if not any(path.glob("*.safetensors")):
        raise Refused(
            "there are no *.safetensors weights",
            where=str(path),
            fix="save the model with safetensors; pickles are not read",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
