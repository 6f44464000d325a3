"""Features kept on disk: the target's own, told in size before they are made, and trained from alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.recipe import Recipe
from dflash_pipeline.stages import features as features_module
from dflash_pipeline.stages.drafter_shape import recipe_drafter
from dflash_pipeline.stages.features import make_features
from dflash_pipeline.stages.tokens import open_tokens
from dflash_pipeline.store.features import FeatureStore
from dflash_pipeline.store.files import folder_faults
from dflash_pipeline.training.collate import AnchorRule, Collator
from tests.stages.test_weighted_snapshots import Bench
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import train, write_toy

DRAFTER = {"num_layers": 2, "tap_layer_ids": [0, 1], "block_size": 4}


class Made:
    """A snapshot of the example target, and its features."""

    def __init__(self, folder: Path, *, limit: float | None = 1.0) -> None:
        bench = Bench(folder)
        plain = bench.recipe()
        self.storage = bench.storage
        self.snapshot = bench.snapshot()
        raw = plain.model_dump() | {"drafter": DRAFTER}
        raw["training"] = raw["training"] | {"feature_cache_gib": limit}
        self.recipe = Recipe.model_validate(raw)
        self.told: list[str] = []
        self.folder = self.make()

    def make(self) -> Path | None:
        drafter = recipe_drafter(self.recipe)
        return make_features(
            self.recipe, self.storage, self.snapshot, target="theirs", drafter=drafter, tell=self.told.append
        )


def test_they_are_the_targets_features_of_every_training_sample(tmp_path):
    made = Made(tmp_path)
    tokens = open_tokens(made.storage, made.snapshot)
    store = FeatureStore(made.folder, tokens.lengths())
    target = FrozenTarget.load(made.recipe.target.path, tap_layer_ids=(0, 1))
    assert made.snapshot.num_validation_samples > 0
    for sample in range(made.snapshot.num_train_samples):
        alone = target.features(torch.from_numpy(tokens.input_ids(sample).astype(np.int64))[None])[0]
        torch.testing.assert_close(torch.from_numpy(store.features(sample).copy()), alone, rtol=1e-4, atol=1e-4)
    with pytest.raises(Refused, match="only training samples are cached"):
        store.features(made.snapshot.num_train_samples)


def test_the_size_is_told_first_and_what_is_there_is_used_again(tmp_path, monkeypatch):
    made = Made(tmp_path)
    size = (made.folder / "features.f32").stat().st_size
    tokens = int(open_tokens(made.storage, made.snapshot).lengths()[: made.snapshot.num_train_samples].sum())
    assert size == tokens * 2 * recipe_drafter(made.recipe).hidden_size * 4
    assert made.told[0].startswith(f"features of {tokens:,} tokens, {size / 2**30:.2f} GiB, go to ")
    monkeypatch.setattr(features_module, "_write", None)  # Nothing is computed again.
    assert made.make() == made.folder
    assert len(made.told) == 1


def test_damage_is_set_aside_and_made_again(tmp_path):
    made = Made(tmp_path)
    path = made.folder / "features.f32"
    path.write_bytes(path.read_bytes()[:-4])
    assert folder_faults(made.folder)
    assert made.make() == made.folder
    assert not folder_faults(made.folder)
    assert made.folder.with_name(f"{made.folder.name}.damaged-1").exists()


def test_a_set_too_large_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(Refused, match=r"training\.feature_cache_gib: .* GiB; raise the limit of 1e-06 GiB"):
        Made(tmp_path, limit=1e-6)
    assert not (tmp_path / "storage" / "features").exists()


def test_a_full_disk_is_refused(tmp_path, monkeypatch):
    class Full:
        free = 10

    monkeypatch.setattr(features_module.shutil, "disk_usage", lambda _path: Full)
    with pytest.raises(Refused, match=r"0\.00 GiB are free"):
        Made(tmp_path)


def test_without_a_limit_there_are_none(tmp_path):
    assert Made(tmp_path, limit=None).folder is None


@pytest.mark.parametrize("strategy", ["window", "varlen"])
def test_training_from_them_is_training_without(tmp_path, strategy, monkeypatch):
    """The same losses but for their last bits, and the target computes nothing."""
    toy = write_toy(tmp_path, lengths=LENGTHS, spec=replace(SPEC, strategy=strategy), epochs=1)
    plain = train(toy, run_dir=tmp_path / "plain").recorder.steps
    store = toy_features(tmp_path, toy)

    def use_them(trainer):
        trainer.collate = Collator(
            tokens=trainer.collate.tokens,
            anchors=AnchorRule(share=1.0, most=3, seed=5),
            block_size=4,
            objective=toy.settings.objective,
            features=store,
        )

    monkeypatch.setattr(FrozenTarget, "features", None)
    kept = train(toy, run_dir=tmp_path / "kept", watch=use_them).recorder.steps
    assert [step.loss for step in kept] == pytest.approx([step.loss for step in plain], rel=1e-4)


class ToyFeatures:
    """What `FeatureStore` gives, from memory."""

    def __init__(self, target: FrozenTarget, rows: list[np.ndarray]) -> None:
        self.found = [target.features(torch.from_numpy(r.astype(np.int64))[None])[0].numpy() for r in rows]
        self.cache = type("Cache", (), {"width": self.found[0].shape[1]})

    def features(self, sample: int) -> np.ndarray:
        return self.found[sample]


def toy_features(folder: Path, toy) -> ToyFeatures:
    from dflash_pipeline.store.tokens import TokenStore

    tokens = TokenStore(folder, toy.shards)
    target = FrozenTarget.load(Path(toy.target_dir), tap_layer_ids=toy.drafter.tap_layer_ids)
    return ToyFeatures(target, [tokens.input_ids(i) for i in range(len(LENGTHS))])
