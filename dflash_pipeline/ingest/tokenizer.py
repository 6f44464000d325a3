"""A target's tokenizer, from its folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_pipeline.contracts.errors import Refused, refusing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_TOKENIZER_FILES = (
    *_VOCABULARIES,
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """A fast tokenizer from a local folder; runs no code of the folder's and asks no network."""
    # Imported here: it takes seconds, and who only reads the names of this module should not wait.
    from transformers import AutoTokenizer

    fix = "give the folder of a model in Hugging Face format, with its tokenizer.json"
    # Without any of these transformers makes up an empty tokenizer, or asks for a name on the network.
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise Refused(
            f"no tokenizer can be read: there is none of {', '.join(_VOCABULARIES)}", where=str(folder), fix=fix
        )
    with refusing("no tokenizer can be read", where=str(folder), fix=fix):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise Refused("a tokenizer that cannot tell which characters a token stands for", where=str(folder), fix=fix)
    return tokenizer


def tokenizer_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that makes the tokenizer, by name."""
    paths = [folder / name for name in _TOKENIZER_FILES]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}
