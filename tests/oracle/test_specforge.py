"""Our loss and its gradients against SpecForge's training module, from the same exported files and the same anchors.

SpecForge weighs every supervised slot of a block; we stop at the first unsupervised one. It divides a D-PACE sum by the
rows, we by the weights. Inside a block its window has no end, so a window here is longer than a block. Nothing else
differs.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dflash_pipeline.evaluation.export import export_drafter, load_drafter
from dflash_pipeline.model.anchors import sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import TrainingBatch
from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import LossParts, Objective, micro_batch_loss, planned_weights
from dflash_pipeline.model.target import FrozenTarget
from tests.oracle.agreement import assert_same_gradients, assert_same_loss, tapped
from tests.oracle.packages import oracle
from tests.tiny_models import TAPS, batch_of_rows, random_samples, strong_drafter, tiny_config, tiny_model

family = oracle("specforge.algorithms.common.dflash_family_model")
dflash = oracle("specforge.modeling.draft.dflash")

pytestmark = pytest.mark.oracle

DECAY = Objective(weighting="decay", decay=4.0)


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny_model().save_pretrained(folder)
    return folder


@pytest.fixture
def batch() -> TrainingBatch:
    """Two rows of unequal length; the shorter has three places without an anchor. A block of each runs past its end."""
    tokens, anchors = random_samples(lengths=(40, 23), num_anchors=(9, 6))
    anchors[0][-1], anchors[1][-1] = 38, 21
    batch = batch_of_rows(tokens, anchors)
    batch.loss_mask[:, :3] = (
        True  # Places without an anchor stand at 0: they would be trained if nothing kept them out.
    )
    assert anchors_in_rows(batch)[1].sum(1).tolist() == [9, 6]
    return batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("decay", [4.0, 7.0])
@pytest.mark.parametrize("window", [None, 12])
def test_loss_and_gradients_are_equal(target_dir, tmp_path, batch, window, decay, attention):
    objective = replace(DECAY, decay=decay)
    ours, theirs = both(tiny_config(window=window), objective, target_dir, tmp_path / "d", batch, attention=attention)
    expected = their_loss(theirs, batch)
    parts = our_parts(ours, target_dir, batch, planned(batch, objective), objective)
    loss = parts.loss_sum / parts.weight
    loss.backward()
    assert_same_loss(loss, expected)
    assert_same_gradients(ours, theirs.draft_model)


@pytest.mark.parametrize("smoothing", [0.5, 0.2])
def test_weights_by_the_chance_of_acceptance_are_equal(target_dir, tmp_path, batch, smoothing):
    objective = Objective(weighting="dpace", decay=4.0, smoothing=smoothing)
    ours, theirs = both(tiny_config(), objective, target_dir, tmp_path / "d", batch, attention="sdpa")
    expected = their_loss(theirs, batch)
    loss = our_parts(ours, target_dir, batch, planned(batch, objective), objective).loss_sum / len(batch.input_ids)
    loss.backward()
    assert_same_loss(loss, expected)
    assert_same_gradients(ours, theirs.draft_model)


def test_slots_behind_an_unsupervised_token_are_the_only_difference(target_dir, tmp_path, batch):
    batch.loss_mask[0, 14:17] = False
    size = tiny_config().block_size
    ours, theirs = both(tiny_config(), DECAY, target_dir, tmp_path / "d", batch, attention="sdpa")
    expected = their_loss(theirs, batch)

    places = batch.blocks.anchors[:, None] + torch.arange(size)
    every_slot = batch.loss_mask.flatten()[places.clamp(max=79)] & (places < batch.blocks.ends[:, None])
    every_slot = every_slot & (torch.arange(size) > 0)
    assert every_slot.sum() > supervised_slots(batch.loss_mask, batch.blocks, block_size=size).sum()
    parts = our_parts(ours, target_dir, batch, planned_weights(every_slot, DECAY), DECAY)
    assert_same_loss(parts.loss_sum / parts.weight, expected)


def test_the_same_positions_can_be_anchors():
    mask = torch.from_numpy(np.random.default_rng(0).random((6, 50)) < 0.7)
    module = torch.nn.Module.__new__(family.OnlineDFlashModel)
    torch.nn.Module.__init__(module)
    module.num_anchors = 50
    anchors, valid = module._sample_anchor_positions(50, mask.float(), torch.device("cpu"))
    for row in range(6):
        own = sample_anchors(mask[row].numpy(), share=1.0, most=50, seed=0, epoch=0, sample_id=row)
        assert anchors[row, valid[row]].tolist() == own.tolist()
        assert own.size > 5


def both(config: DrafterConfig, objective: Objective, target_dir, folder, batch: TrainingBatch, *, attention: str):
    """Our drafter and their training module, of the same files; theirs is handed the anchors of the batch."""
    export_drafter(config, strong_drafter(config).state_dict(), target_dir=target_dir, out=folder, card="")
    draft, model = dflash.DFlashDraftModel.from_pretrained(folder, attn_implementation=attention), tiny_model()
    theirs = family.OnlineDFlashModel(
        draft,
        target_lm_head=model.lm_head.requires_grad_(False),
        target_embed_tokens=model.model.embed_tokens.requires_grad_(False),
        mask_token_id=draft.mask_token_id,
        block_size=draft.block_size,
        attention_backend=attention,
        loss_decay_gamma=objective.decay,
        loss_type={"decay": "dflash", "dpace": "dpace"}[objective.weighting],
        dpace_alpha=objective.smoothing,
    )
    theirs._sample_anchor_positions = lambda *_, **__: anchors_in_rows(batch)
    return load_drafter(folder), theirs


def anchors_in_rows(batch: TrainingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, A] each, as theirs are: anchors, and which places have one."""
    rows, width = batch.input_ids.shape
    found = [[place % width for place in batch.blocks.anchors.tolist() if place // width == row] for row in range(rows)]
    most = max(len(row) for row in found)
    valid = torch.tensor([[at < len(row) for at in range(most)] for row in found])
    return torch.tensor([row + [0] * (most - len(row)) for row in found]), valid


def planned(batch: TrainingBatch, objective: Objective) -> torch.Tensor:
    slots = supervised_slots(batch.loss_mask, batch.blocks, block_size=tiny_config().block_size)
    return planned_weights(slots, objective)


def our_parts(
    drafter: Drafter, target_dir, batch: TrainingBatch, weights: torch.Tensor, objective: Objective
) -> LossParts:
    target = FrozenTarget.load(target_dir, tap_layer_ids=drafter.config.tap_layer_ids)
    return micro_batch_loss(drafter, target, batch, weights, objective)


def their_loss(module, batch: TrainingBatch) -> torch.Tensor:
    features = tapped(tiny_model().eval(), batch.input_ids, TAPS)
    loss, *_ = module(batch.input_ids, features, batch.loss_mask.float())
    loss.backward()
    return loss
