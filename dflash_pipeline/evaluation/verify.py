"""Proof that an exported drafter is what it says: files, names, shapes, config, and drafting that loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.errors import DflashError, Failed, Refused
from dflash_pipeline.contracts.hashing import counter_hash
from dflash_pipeline.evaluation.decode import draft_and_verify, greedy_decode
from dflash_pipeline.evaluation.export import check_tensors, load_drafter, read_config, read_config_json, read_tensors
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.model.target_files import TOKENIZER_FILES, check_target_folder
from dflash_pipeline.model.zlab_json import to_zlab_json
from dflash_pipeline.store.files import file_sha256, folder_faults

_NUM_PROMPTS, _PROMPT_LENGTH, _NEW_TOKENS = 3, 16, 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One question asked of an export, and its answer in a sentence."""

    name: str
    ok: bool
    detail: str


def verify_export(folder: Path, target_dir: Path) -> tuple[Check, ...]:
    """Ask everything of an export that can be asked without a serving engine. Reads files only; changes nothing."""
    if not folder.is_dir():
        raise Refused("there is no such folder", where=str(folder), fix="give an exported drafter, storage/exports/…")
    check_target_folder(target_dir)
    questions: tuple[tuple[str, Callable[[Path, Path], str]], ...] = (
        ("files", _files),
        ("config", _config),
        ("tensors", _tensors),
        ("tokenizer", _tokenizer),
        ("decoding", _decoding),
    )
    return tuple(_ask(name, question, folder, target_dir) for name, question in questions)


def _ask(name: str, question: Callable[[Path, Path], str], folder: Path, target_dir: Path) -> Check:
    try:
        return Check(name=name, ok=True, detail=question(folder, target_dir))
    except DflashError as error:
        return Check(name=name, ok=False, detail=str(error))


def _files(folder: Path, _target_dir: Path) -> str:
    faults = folder_faults(folder)
    if faults:
        raise Failed("; ".join(faults), where=str(folder), fix="export the drafter again")
    return "every file matches its hash"


def _config(folder: Path, _target_dir: Path) -> str:
    config, raw = read_config(folder), read_config_json(folder)
    written = to_zlab_json(config, str(raw.get("dtype")))
    differing = sorted(key for key, value in written.items() if raw.get(key) != value)
    if differing:
        raise Failed(
            f"config.json lacks or changes {', '.join(differing)}", where=str(folder), fix="export the drafter again"
        )
    taps = f"taps {list(config.tap_layer_ids)} of {config.num_target_layers} layers"
    return f"complete, {taps}, block size {config.block_size}"


def _tensors(folder: Path, _target_dir: Path) -> str:
    state = read_tensors(folder)
    dtype = check_tensors(read_config(folder), state, where=str(folder))
    declared = read_config_json(folder).get("dtype")
    if f"torch.{declared}" != str(dtype):
        raise Failed(f"tensors are {dtype}, config.json says {declared}", where=str(folder), fix="export it again")
    broken = sorted(name for name, tensor in state.items() if not bool(tensor.isfinite().all()))
    if broken:
        raise Failed(f"not finite: {', '.join(broken[:4])}", where=str(folder), fix="export from an earlier checkpoint")
    return f"{len(state)} tensors with the names and shapes that the config implies"


def _tokenizer(folder: Path, target_dir: Path) -> str:
    names = [name for name in TOKENIZER_FILES if (target_dir / name).is_file()]
    differing = [name for name in names if not _same_file(folder / name, target_dir / name)]
    if differing:
        raise Failed(
            f"{', '.join(differing)} differ from the target's",
            where=str(folder),
            fix="export with the target it is for",
        )
    return f"{len(names)} files equal the target's"


def _decoding(folder: Path, target_dir: Path) -> str:
    drafter = load_drafter(folder).float()
    config = drafter.config
    target = FrozenTarget.load(target_dir, tap_layer_ids=config.tap_layer_ids)
    text = target.config.get_text_config(decoder=True)
    sizes = (text.hidden_size, text.vocab_size, text.num_hidden_layers)
    if sizes != (config.hidden_size, config.vocab_size, config.num_target_layers):
        raise Refused(
            f"hidden size, vocabulary and layers of the target are {sizes}, the drafter is for "
            f"{(config.hidden_size, config.vocab_size, config.num_target_layers)}",
            where=str(folder),
            fix="verify with the target it was trained for",
        )
    rounds: list[int] = []
    for number in range(_NUM_PROMPTS):
        prompt = _prompt_ids(number, vocab_size=config.vocab_size).tolist()
        alone = greedy_decode(target, prompt, max_new_tokens=_NEW_TOKENS, stop_ids=frozenset())
        decoded = draft_and_verify(target, drafter, prompt, max_new_tokens=_NEW_TOKENS, stop_ids=frozenset())
        if decoded.tokens != tuple(alone):
            raise Failed(
                f"prompt {number} decodes to other tokens with the drafter",
                where=str(folder),
                fix="report it: verification must never change what the target says",
            )
        rounds += decoded.accepted
    return f"{_NUM_PROMPTS} prompts of arbitrary tokens decode as without it, acceptance length {np.mean(rounds):.2f}"


def _same_file(one: Path, other: Path) -> bool:
    return one.is_file() and file_sha256(one) == file_sha256(other)


def _prompt_ids(number: int, *, vocab_size: int) -> NDArray[np.int64]:
    keys = counter_hash(number, 0, np.arange(_PROMPT_LENGTH))
    return (keys % np.uint64(vocab_size)).astype(np.int64)
