"""Train, export, load and decode: the one test that sees a label shift, a wrong tap, position or mask token.

Each of these faults trains to a loss near zero, and decoding stays lossless; acceptance alone tells.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dflash_pipeline.evaluation.acceptance import AcceptanceReport, measure_acceptance
from dflash_pipeline.evaluation.decode import greedy_decode
from dflash_pipeline.evaluation.export import export_drafter, load_drafter
from dflash_pipeline.model import masks, objective
from dflash_pipeline.model.anchors import sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import Blocks, TrainingBatch, in_rows, place_blocks
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import Objective, micro_batch_loss, planned_weights
from dflash_pipeline.model.target import FrozenTarget
from tests.tiny_models import MASK_TOKEN, VOCAB, tiny_config, tiny_model

PROMPT, ANSWER, SEQUENCES, STEPS, ANCHORS = 6, 32, 12, 110, 10
OBJECTIVE = Objective(weighting="decay", decay=4.0)


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


def train(
    config: DrafterConfig,
    target_dir,
    texts: torch.Tensor,
    spoil: Callable[[TrainingBatch], TrainingBatch] = lambda batch: batch,
) -> Trained:
    target = FrozenTarget.load(target_dir, tap_layer_ids=config.tap_layer_ids)
    drafter = Drafter.initialised(config, 0)
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=3e-3, weight_decay=0.0)
    loss = float("nan")
    for step in range(STEPS):
        batch, weights = batch_of(texts, epoch=step, block_size=config.block_size)
        optimiser.zero_grad()
        mean = micro_batch_loss(drafter, target, spoil(batch), weights, OBJECTIVE).loss_sum / weights.sum()
        mean.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimiser.step()
        loss = float(mean.detach())
    return Trained(config=config, state=drafter.state_dict(), loss=loss)


def batch_of(texts: torch.Tensor, *, epoch: int, block_size: int) -> tuple[TrainingBatch, torch.Tensor]:
    supervised = np.arange(texts.shape[1]) >= PROMPT
    anchors = [
        sample_anchors(supervised, share=1.0, most=ANCHORS, seed=0, epoch=epoch, sample_id=i) for i in range(SEQUENCES)
    ]
    documents = in_rows([texts.shape[1]] * SEQUENCES)
    batch = TrainingBatch(
        input_ids=texts,
        loss_mask=torch.from_numpy(supervised).expand(SEQUENCES, -1),
        documents=documents,
        blocks=place_blocks(anchors, documents, width=texts.shape[1]),
    )
    weights = planned_weights(supervised_slots(batch.loss_mask, batch.blocks, block_size=block_size), OBJECTIVE)
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
    places = objective._places
    last = SEQUENCES * texts.shape[1] - 1
    monkeypatch.setattr(objective, "_places", lambda batch, size: (places(batch, size) + 1).clamp(max=last))
    expect_refused_drafts(train(tiny_config(), target_dir, texts), target_dir, texts, tmp_path, below=2.0)


def test_features_shifted_by_one_show_in_acceptance_alone(target_dir, texts, tmp_path, monkeypatch):
    features = FrozenTarget.features
    with monkeypatch.context() as training:
        training.setattr(FrozenTarget, "features", lambda self, ids: features(self, ids).roll(-1, dims=1))
        trained = train(tiny_config(), target_dir, texts)
    expect_refused_drafts(trained, target_dir, texts, tmp_path, below=2.0)


def test_a_leak_of_a_whole_block_shows_in_acceptance_alone(target_dir, texts, tmp_path, monkeypatch):
    width = texts.shape[1]
    sees = masks.sees

    def sees_too_far(blocks: Blocks, *, block_size: int, window: int | None):
        rule = sees(blocks, block_size=block_size, window=window)

        def slot_sees_key(row, head, slot, key):
            block = slot // block_size
            last = torch.minimum(blocks.context_ends + 8, blocks.context_starts + width)[block]
            leaked = (key >= blocks.context_starts[block]) & (key < last)
            own = rule(row, head, slot, key - blocks.num_context + blocks.context_ends[-1])
            return leaked | ((key >= blocks.num_context) & own)

        return slot_sees_key

    def all_the_text(batch: TrainingBatch) -> TrainingBatch:
        starts = batch.blocks.anchors // width * width
        cuts = [
            replace(cut, first_context=int(starts[cut.first_block]), end_context=int(starts[cut.first_block]) + width)
            for cut in batch.blocks.cuts
        ]
        packed = replace(
            batch.blocks,
            context_starts=starts,
            context_ends=batch.blocks.anchors,
            context_positions=torch.arange(width).repeat(SEQUENCES),
            contexts=batch.documents,
            cuts=tuple(cuts),
        )
        return replace(batch, blocks=packed)

    monkeypatch.setattr(masks, "sees", sees_too_far)

    trained = train(tiny_config(), target_dir, texts, spoil=all_the_text)
    expect_refused_drafts(trained, target_dir, texts, tmp_path, below=4.0)


def test_positions_off_by_one_show_in_acceptance_alone(target_dir, texts, tmp_path):
    def later(batch: TrainingBatch) -> TrainingBatch:
        return replace(batch, blocks=replace(batch.blocks, context_starts=batch.blocks.context_starts - 1))

    expect_refused_drafts(train(tiny_config(), target_dir, texts, spoil=later), target_dir, texts, tmp_path, below=3.0)


def expect_refused_drafts(trained: Trained, target_dir, texts, folder, *, below: float) -> None:
    """The loss is as low as can be, and nothing is lost: only how much is accepted tells."""
    report = served(trained, trained.config, target_dir, texts, folder / "d")
    assert trained.loss < 0.2
    assert report.lossless
    assert report.mean < below
