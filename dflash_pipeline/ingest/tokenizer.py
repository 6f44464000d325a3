"""A target's tokenizer, from its folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_pipeline.contracts.errors import Refused, refusing
from dflash_pipeline.ingest.collector import collector_off
from dflash_pipeline.ingest.encoder import TextEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_TOKENIZER_FILES = (
    *_VOCABULARIES,
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
_FIX = "give the folder of a model in Hugging Face format, with its tokenizer.json"
_READ = ("*.json", "*.jinja", "*.txt", "*.model", "additional_chat_templates/*.jinja")
"""Whatever transformers may read of a folder for its tokenizer, and more."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedTokenizer:
    """A tokenizer and its encoder."""

    tokenizer: PreTrainedTokenizerBase
    encoder: TextEncoder


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """A fast tokenizer from a local folder; runs no code of the folder's and asks no network. Not to be changed."""
    return loaded_tokenizer(folder).tokenizer


def loaded_tokenizer(folder: Path) -> LoadedTokenizer:
    """The same with its encoder. While the folder's files stay as they are, every call of a process gets the same."""
    with refusing("no tokenizer can be read", where=str(folder), fix=_FIX):
        paths = sorted(path for pattern in _READ for path in folder.glob(pattern) if path.is_file())
        files = tuple((str(path), _sha256(path)) for path in paths)
    return _loaded(folder, files)


# The digests only tell calls apart. Loading parses megabytes of JSON several times.
@lru_cache(maxsize=2)
def _loaded(folder: Path, _files: tuple[tuple[str, str], ...]) -> LoadedTokenizer:
    # Imported here: it takes seconds, and who only reads the names of this module should not wait.
    from transformers import AutoTokenizer

    # Without any of these transformers makes up an empty tokenizer, or asks for a name on the network.
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise Refused(
            f"no tokenizer can be read: there is none of {', '.join(_VOCABULARIES)}", where=str(folder), fix=_FIX
        )
    with collector_off(), refusing("no tokenizer can be read", where=str(folder), fix=_FIX):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise Refused("a tokenizer that cannot tell which characters a token stands for", where=str(folder), fix=_FIX)
    return LoadedTokenizer(tokenizer=tokenizer, encoder=TextEncoder(tokenizer.backend_tokenizer))


def tokenizer_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that makes the tokenizer, by name."""
    paths = [folder / name for name in _TOKENIZER_FILES]
    return {path.name: _sha256(path) for path in paths if path.is_file()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
