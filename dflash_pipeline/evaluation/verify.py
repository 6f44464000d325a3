"""Proof that an exported drafter is what it says: files, names, shapes, config, and drafting that loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash_pipeline.contracts.errors import DflashError, Failed, Refused
from dflash_pipeline.contracts.hashing import counter_hash
from dflash_pipeline.evaluation.acceptance import measure_acceptance
from dflash_pipeline.evaluation.carried import CARRIED, CarriedAcceptance, carries
from dflash_pipeline.evaluation.decode import draft_and_verify, greedy_decode
from dflash_pipeline.evaluation.export import (
    WEIGHTS,
    check_tensors,
    load_drafter,
    read_config,
    read_config_json,
    read_tensors,
)
from dflash_pipeline.evaluation.speculators_format import is_speculators_json, to_speculators_json, verifier_of
from dflash_pipeline.model.config import target_rope_theta
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.loading import load_config
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.model.target_files import TOKENIZER_FILES, check_target_folder
from dflash_pipeline.model.zlab_json import to_zlab_json
from dflash_pipeline.store.files import HASH_LIST, file_sha256, folder_faults
from dflash_pipeline.store.records import load_record

_NUM_PROMPTS, _PROMPT_LENGTH, _NEW_TOKENS = 3, 16, 24
NOISE = 0.15
"""Share by which the drafted tokens a round may differ from the report's; the token that every round has is left out.
On one device in float32 they are equal. Another device, or bfloat16, decides ties otherwise and moves them by some
percent; every wrong tap, mask token or rotary base that we tried took away more than a third of them."""
LEAST_NOISE = 0.02
"""Tokens a round: below this nothing is told apart, whatever share it is."""
_OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json")
"""What loaders take for weights, too."""
_FIX_EXPORT = "export the drafter again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One question asked of an export, and its answer in a sentence."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    folder: Path
    target_dir: Path
    device: str


def verify_export(folder: Path, target_dir: Path, *, device: str = "cpu") -> tuple[Check, ...]:
    """Ask everything of an export that can be asked without a serving engine. Reads files only; changes nothing."""
    if not folder.is_dir():
        raise Refused("there is no such folder", where=str(folder), fix="give an exported drafter, storage/exports/…")
    check_target_folder(target_dir)
    subject = _Subject(folder=folder, target_dir=target_dir, device=device)
    questions: tuple[tuple[str, Callable[[_Subject], str]], ...] = (
        ("files", _files),
        ("config", _config),
        ("tensors", _tensors),
        ("target", _target),
        ("tokenizer", _tokenizer),
    )
    return (*(_ask(name, question, subject) for name, question in questions), *_drafting(subject))


def _ask(name: str, question: Callable[[_Subject], str], subject: _Subject) -> Check:
    try:
        return Check(name=name, ok=True, detail=question(subject))
    except DflashError as error:
        return Check(name=name, ok=False, detail=str(error))


def _files(subject: _Subject) -> str:
    if faults := folder_faults(subject.folder):
        raise Failed("; ".join(faults), where=str(subject.folder), fix=_FIX_EXPORT)
    listed = {line.partition("  ")[2] for line in (subject.folder / HASH_LIST).read_text().splitlines()}
    found = {path.relative_to(subject.folder).as_posix() for path in subject.folder.rglob("*") if path.is_file()}
    if strange := sorted(found - listed - {HASH_LIST}):
        raise Failed(f"not of the export: {', '.join(strange[:4])}", where=str(subject.folder), fix="take them out")
    return "every file matches its hash, and there is no other"


def _config(subject: _Subject) -> str:
    config, raw = read_config(subject.folder), read_config_json(subject.folder)
    dtype, speculators = str(raw.get("dtype")), is_speculators_json(raw)
    written = to_speculators_json(config, dtype, verifier_of(raw)) if speculators else to_zlab_json(config, dtype)
    differing = sorted(key for key, value in written.items() if raw.get(key) != value)
    if differing:
        raise Failed(f"config.json lacks or changes {', '.join(differing)}", where=str(subject.folder), fix=_FIX_EXPORT)
    if "auto_map" in raw:
        raise Failed(
            "config.json names code to run (auto_map)",
            where=str(subject.folder),
            fix="take it out: SGLang would run it",
        )
    taps = f"taps {list(config.tap_layer_ids)} of {config.num_target_layers} layers"
    return f"{'speculators' if speculators else 'z-lab'} form, complete, {taps}, block size {config.block_size}"


def _tensors(subject: _Subject) -> str:
    where = str(subject.folder)
    others = sorted({p.name for form in _OTHER_WEIGHTS for p in subject.folder.rglob(form)} - {WEIGHTS})
    if others:
        raise Failed(f"more weights beside {WEIGHTS}: {', '.join(others[:4])}", where=where, fix=_FIX_EXPORT)
    state = read_tensors(subject.folder)
    dtype = check_tensors(read_config(subject.folder), state, where=where)
    declared = read_config_json(subject.folder).get("dtype")
    if f"torch.{declared}" != str(dtype):
        raise Failed(f"tensors are {dtype}, config.json says {declared}", where=where, fix=_FIX_EXPORT)
    broken = sorted(name for name, tensor in state.items() if not bool(tensor.isfinite().all()))
    if broken:
        raise Failed(f"not finite: {', '.join(broken[:4])}", where=where, fix="export from an earlier checkpoint")
    return f"{len(state)} tensors with the names and shapes that the config implies"


def _target(subject: _Subject) -> str:
    config, raw = read_config(subject.folder), read_config_json(subject.folder)
    text = load_config(subject.target_dir).get_text_config(decoder=True)
    depth = raw.get("num_target_layers", text.num_hidden_layers)
    pairs = (
        ("hidden size", config.hidden_size, text.hidden_size),
        ("vocabulary", config.vocab_size, text.vocab_size),
        ("layers", depth, text.num_hidden_layers),
        ("rotary base", config.rope_theta, target_rope_theta(text)),
    )
    wrong = [f"{name} {theirs}, the drafter is for {ours}" for name, ours, theirs in pairs if ours != theirs]
    if config.tap_layer_ids[-1] > text.num_hidden_layers - 2:
        wrong.append(f"{text.num_hidden_layers} layers, too few for tap {config.tap_layer_ids[-1]}")
    if wrong:
        raise Failed(
            f"the target has {'; '.join(wrong)}",
            where=str(subject.folder),
            fix="verify with the target that the drafter was trained for, or export it again",
        )
    return f"hidden size, vocabulary, layers and rotary base {config.rope_theta:g} are the target's"


def _tokenizer(subject: _Subject) -> str:
    names = [name for name in TOKENIZER_FILES if (subject.target_dir / name).is_file()]
    differing = [name for name in names if not _same_file(subject.folder / name, subject.target_dir / name)]
    if differing:
        raise Failed(
            f"{', '.join(differing)} differ from the target's",
            where=str(subject.folder),
            fix="export with the target it is for",
        )
    return f"{len(names)} files equal the target's"


def _drafting(subject: _Subject) -> tuple[Check, Check]:
    """Decoding and acceptance, with drafter and target loaded once for both."""
    try:
        pair = _loaded(subject)
    except DflashError as error:
        return Check(name="decoding", ok=False, detail=str(error)), Check(
            name="acceptance", ok=False, detail=str(error)
        )
    return (
        _ask("decoding", lambda s: _decoding(s, *pair), subject),
        _ask("acceptance", lambda s: _acceptance(s, *pair), subject),
    )


def _loaded(subject: _Subject) -> tuple[FrozenTarget, Drafter]:
    drafter = load_drafter(subject.folder).float().to(subject.device)
    config, text = drafter.config, load_config(subject.target_dir).get_text_config(decoder=True)
    if (text.hidden_size, text.vocab_size) != (config.hidden_size, config.vocab_size):
        raise Refused(
            f"hidden size and vocabulary of the target are {(text.hidden_size, text.vocab_size)}, the drafter is for "
            f"{(config.hidden_size, config.vocab_size)}",
            where=str(subject.folder),
            fix="verify with the target it was trained for",
        )
    target = FrozenTarget.load(subject.target_dir, tap_layer_ids=config.tap_layer_ids, device=subject.device)
    return target, drafter


def _decoding(subject: _Subject, target: FrozenTarget, drafter: Drafter) -> str:
    rounds: list[int] = []
    for number in range(_NUM_PROMPTS):
        prompt = _prompt_ids(number, vocab_size=drafter.config.vocab_size).tolist()
        alone = greedy_decode(target, prompt, max_new_tokens=_NEW_TOKENS, stop_ids=frozenset())
        decoded = draft_and_verify(target, drafter, prompt, max_new_tokens=_NEW_TOKENS, stop_ids=frozenset())
        if decoded.tokens != tuple(alone):
            raise _changed(subject, f"prompt {number} decodes")
        rounds += decoded.accepted
    return f"{_NUM_PROMPTS} prompts of arbitrary tokens decode as without it, acceptance length {np.mean(rounds):.2f}"


def _acceptance(subject: _Subject, target: FrozenTarget, drafter: Drafter) -> str:
    """What the export says of itself, measured again on the prompts that it carries."""
    folder = subject.folder
    if not carries(folder):
        return "not measured: it carries no report, so wrong taps, mask token or rotary base would not show"
    carried = load_record(folder / CARRIED, CarriedAcceptance)
    if carried.weights != file_sha256(folder / WEIGHTS):
        raise Failed(f"{CARRIED} is about other weights", where=str(folder), fix=_FIX_EXPORT)
    if carried.block_size != drafter.config.block_size:
        raise Failed(
            f"block size {drafter.config.block_size}, measured with {carried.block_size}",
            where=str(folder),
            fix=_FIX_EXPORT,
        )
    found = measure_acceptance(
        target,
        drafter,
        [np.asarray(prompt.token_ids, dtype=np.int64) for prompt in carried.prompts],
        max_new_tokens=carried.max_new_tokens,
        stop_ids=frozenset(carried.stop_ids),
    )
    if not found.lossless:
        raise _changed(subject, f"{found.num_differing} of {len(carried.prompts)} prompts decode")
    said = float(np.mean([prompt.mean for prompt in carried.prompts]))
    figures = f"{found.mean:.3f} on {len(carried.prompts)} of the report's {carried.num_prompts} prompts"
    if abs(found.mean - said) > max(NOISE * (said - 1), LEAST_NOISE):
        raise Failed(
            f"acceptance length {figures}, where the report says {said:.3f}",
            where=str(folder),
            fix="its taps, mask token or rotary base are not those it was trained with: export it again from its run",
        )
    return f"acceptance length {figures}; the report says {said:.3f} on these, {carried.mean:.3f} on all"


def _changed(subject: _Subject, what: str) -> Failed:
    return Failed(
        f"{what} to other tokens with the drafter",
        where=str(subject.folder),
        fix="report it: verification must never change what the target says",
    )


def _same_file(one: Path, other: Path) -> bool:
    return one.is_file() and file_sha256(one) == file_sha256(other)


def _prompt_ids(number: int, *, vocab_size: int) -> NDArray[np.int64]:
    keys = counter_hash(number, 0, np.arange(_PROMPT_LENGTH))
    return (keys % np.uint64(vocab_size)).astype(np.int64)
