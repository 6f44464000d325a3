"""Train, export, load and decode: the one test that sees a label shift, a wrong tap, position or mask token.

Each of these faults trains to a loss near zero, and decoding stays lossless; acceptance alone tells.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dflash_pipeline.evaluation.acceptance import AcceptanceReport, measure_acceptance
from dflash_pipeline.evaluation.decode import greedy_decode
from dflash_pipeline.evaluation.export import export_drafter, load_drafter
from dflash_pipeline.model import objective
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import TrainingBatch, micro_batch_loss, sample_anchors, slot_weights
from dflash_pipeline.model.target import FrozenTarget
from tests.tiny_models import MASK_TOKEN, VOCAB, tiny_config, tiny_model

PROMPT, ANSWER, SEQUENCES, STEPS, ANCHORS = 6, 32, 12, 110, 10


@dataclass(frozen=True, kw_only=True)
class Trained:
    config: DrafterConfig
    state: dict[str, torch.Tensor]
    loss: float


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny_model(seed=3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(target_dir) -> torch.Tensor:
    """Greedy answers of the target to random prompts: what a drafter can learn by heart."""
    target = FrozenTarget.load(target_dir, tap_layer_ids=())
    prompts = np.random.default_rng(0).integers(0, MASK_TOKEN, (SEQUENCES, PROMPT)).tolist()
    answers = [greedy_decode(target, p, max_new_tokens=ANSWER, stop_ids=frozenset()) for p in prompts]
    return torch.tensor([p + a for p, a in zip(prompts, answers, strict=True)])


def train(config: DrafterConfig, target_dir, texts: torch.Tensor) -> Trained:
    target = FrozenTarget.load(target_dir, tap_layer_ids=config.tap_layer_ids)
    drafter = Drafter.initialised(config, 0)
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=3e-3, weight_decay=0.0)
    loss = float("nan")
    for step in range(STEPS):
        batch, weights = batch_of(texts, epoch=step, block_size=config.block_size)
        optimiser.zero_grad()
        mean = micro_batch_loss(drafter, target, batch, weights).loss_sum / weights.sum()
        mean.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimiser.step()
        loss = float(mean.detach())
    return Trained(config=config, state=drafter.state_dict(), loss=loss)


def batch_of(texts: torch.Tensor, *, epoch: int, block_size: int) -> tuple[TrainingBatch, torch.Tensor]:
    supervised = np.arange(texts.shape[1]) >= PROMPT
    anchors = [
        sample_anchors(supervised, max_anchors=ANCHORS, seed=0, epoch=epoch, sample_id=i) for i in range(SEQUENCES)
    ]
    batch = TrainingBatch(
        input_ids=texts,
        loss_mask=torch.from_numpy(supervised).expand(SEQUENCES, -1),
        lengths=torch.full((SEQUENCES,), texts.shape[1]),
        anchors=torch.from_numpy(np.stack(anchors)),
        valid=torch.ones(SEQUENCES, ANCHORS, dtype=torch.bool),
    )
    weights = slot_weights(batch.loss_mask, batch.lengths, batch.anchors, batch.valid, block_size=block_size, decay=4.0)
    return batch, weights


def served(trained: Trained, config: DrafterConfig, target_dir, texts, folder) -> AcceptanceReport:
    """Export with this config, load that, and decode the prompts of four training texts."""
    export_drafter(config, trained.state, target_dir=target_dir, out=folder, card="")
    drafter = load_drafter(folder)
    target = FrozenTarget.load(target_dir, tap_layer_ids=drafter.config.tap_layer_ids)
    prompts = [text[:PROMPT].numpy() for text in texts[:4]]
    return measure_acceptance(target, drafter, prompts, max_new_tokens=ANSWER, stop_ids=frozenset())


@pytest.fixture(scope="module")
def trained(target_dir, texts) -> Trained:
    return train(tiny_config(), target_dir, texts)


def test_a_trained_drafter_is_accepted_and_loses_nothing(trained, target_dir, texts, tmp_path):
    report = served(trained, trained.config, target_dir, texts, tmp_path / "d")
    assert len({tuple(text.tolist()) for text in texts[:, PROMPT:]}) == SEQUENCES
    assert np.mean([len(set(text.tolist())) for text in texts[:, PROMPT:]]) > 8  # no constant answers
    assert trained.loss < 0.1
    assert report.lossless
    assert report.mean >= 6.0


def test_an_untrained_drafter_is_not_accepted_and_loses_nothing(target_dir, texts, tmp_path):
    config = tiny_config()
    untrained = Trained(config=config, state=Drafter.initialised(config, 0).state_dict(), loss=0.0)
    report = served(untrained, config, target_dir, texts, tmp_path / "d")
    assert report.lossless
    assert report.mean < 1.5


@pytest.mark.parametrize(
    "wrong",
    [{"tap_layer_ids": (2, 4, 6)}, {"rope_theta": 1e6}, {"mask_token_id": VOCAB - 2}],
    ids=["taps", "theta", "mask token"],
)
def test_a_wrong_config_shows_in_acceptance_alone(trained, target_dir, texts, tmp_path, wrong):
    report = served(trained, replace(trained.config, **wrong), target_dir, texts, tmp_path / "d")
    assert report.lossless
    assert report.mean < 5.0


def test_labels_shifted_by_one_show_in_acceptance_alone(target_dir, texts, tmp_path, monkeypatch):
    def shifted(batch, block_size):
        return labels(replace(batch, anchors=batch.anchors + 1), block_size)

    labels = objective._labels
    monkeypatch.setattr(objective, "_labels", shifted)
    trained = train(tiny_config(), target_dir, texts)
    report = served(trained, trained.config, target_dir, texts, tmp_path / "d")
    assert trained.loss < 0.2
    assert report.lossless
    assert report.mean < 2.0
