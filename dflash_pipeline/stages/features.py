"""Features of every training sample, computed once and kept: for small sets that are trained many times over."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages.progress import Tell, followed
from dflash_pipeline.stages.tokens import open_tokens
from dflash_pipeline.store.features import FEATURES_FILE, FeatureCache
from dflash_pipeline.store.files import folder_faults, new_folder, set_aside
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.records import save_record
from dflash_pipeline.store.tokens import TokenStore

logger = logging.getLogger(__name__)

_TOKENS_AT_ONCE = 8192
_GIB = 2**30


def make_features(
    recipe: Recipe,
    storage: Storage,
    snapshot: CorpusSnapshot,
    *,
    target: str,
    drafter: DrafterConfig,
    tell: Tell = logger.info,
) -> Path | None:
    """The folder with the features, made if it is not there; None when the recipe keeps none.

    `tell` hears the size before anything is written. Refused when it is above the recipe's limit or the free disk.
    """
    limit = recipe.training.feature_cache_gib
    if limit is None:
        return None
    tokens = open_tokens(storage, snapshot)
    lengths = tokens.lengths()[: snapshot.num_train_samples]
    cache = FeatureCache(
        snapshot=snapshot.fingerprint,
        target=target,
        tap_layer_ids=drafter.tap_layer_ids,
        width=len(drafter.tap_layer_ids) * drafter.hidden_size,
        num_tokens=int(lengths.sum()),
    )
    folder = storage.features / cache.fingerprint
    if folder.exists() and not (faults := folder_faults(folder)):
        return folder
    if folder.exists():
        logger.warning("features are made again: %s; the damaged ones are kept as %s", faults[0], set_aside(folder))
    _check_room(cache, limit, storage)
    tell(f"features of {cache.num_tokens:,} tokens, {cache.num_bytes / _GIB:.2f} GiB, go to {folder}")
    with new_folder(folder, act="features") as fresh:
        _write(fresh / FEATURES_FILE, cache, tokens, lengths, recipe, tell)
        save_record(fresh / "cache.json", cache)
    return folder


def _check_room(cache: FeatureCache, limit: float, storage: Storage) -> None:
    if cache.num_bytes > limit * _GIB:
        raise Refused(
            f"the features of {cache.num_tokens:,} tokens take {cache.num_bytes / _GIB:.2f} GiB",
            where="training.feature_cache_gib",
            fix=f"raise the limit of {limit:g} GiB, or leave it out: features are then computed in every step",
        )
    storage.root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(storage.root).free
    if cache.num_bytes > free:
        raise Refused(
            f"the features take {cache.num_bytes / _GIB:.2f} GiB, and {free / _GIB:.2f} GiB are free",
            where=str(storage.root),
            fix="free space, or leave training.feature_cache_gib out",
        )


def _write(
    path: Path, cache: FeatureCache, tokens: TokenStore, lengths: npt.NDArray[np.int64], recipe: Recipe, tell: Tell
) -> None:
    target = FrozenTarget.load(recipe.target.path, tap_layer_ids=cache.tap_layer_ids, device=recipe.training.device)
    rows = np.memmap(path, dtype=np.float32, mode="w+", shape=(cache.num_tokens, cache.width))
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    groups = list(_groups(lengths))
    for samples in followed(groups, total=len(groups), what="features", tell=tell):
        features = _features(target, [tokens.input_ids(int(i)) for i in samples])
        for row, sample in enumerate(samples):
            rows[firsts[sample] : firsts[sample + 1]] = features[row, : lengths[sample]]
    rows.flush()


def _groups(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Samples of like length, so many that they are no more than `_TOKENS_AT_ONCE` when padded, but at least one."""
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < order.size:
        count = max(1, _TOKENS_AT_ONCE // int(lengths[order[first]]))
        yield order[first : first + count]
        first += count


def _features(target: FrozenTarget, rows: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.float32]:
    padded = np.zeros((len(rows), max(row.size for row in rows)), dtype=np.int64)
    for row, ids in enumerate(rows):
        padded[row, : ids.size] = ids
    features = target.features(torch.from_numpy(padded).to(target.device))
    return features.float().cpu().numpy()
