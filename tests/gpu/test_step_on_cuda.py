"""What only a card can show: FlexAttention's gradients, bfloat16 over float32 weights, and who waits for whom."""

import math

import pytest
import torch
from torch.nn import functional

from dflash_pipeline.model.anchors import supervised_slots
from dflash_pipeline.model.blocks import TrainingBatch
from dflash_pipeline.model.config import PLAIN, DrafterConfig, Execution
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.flex import attend_flex, block_masks
from dflash_pipeline.model.masks import sees, window_of
from dflash_pipeline.model.objective import Objective, micro_batch_loss, planned_weights
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.step import Wishes, run_step
from tests.tiny_models import (
    TAPS,
    batch_of_documents,
    random_batch,
    random_samples,
    strong_drafter,
    tiny_config,
    tiny_model,
)
from tests.training.test_step import prepared

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
DECAY = Objective(weighting="decay", decay=4.0)
SIZES = [((40, 31), (7, 5)), ((200,), (40,)), ((60, 50, 40), (9, 8, 7)), ((33, 12), (5, 3))]


def on_cuda(dtype: torch.dtype = torch.float32) -> FrozenTarget:
    return FrozenTarget(tiny_model().to(CUDA, dtype), tap_layer_ids=TAPS)


def drafter_of(config: DrafterConfig, execution: Execution = PLAIN) -> Drafter:
    drafter = Drafter(config, execution)
    drafter.load_state_dict(strong_drafter(config).state_dict())
    return drafter.to(CUDA)


def loss_of(drafter: Drafter, target: FrozenTarget, batch: TrainingBatch) -> torch.Tensor:
    weights = planned_weights(supervised_slots(batch.loss_mask, batch.blocks, block_size=8), DECAY)
    return micro_batch_loss(drafter, target, batch.to(target.device), weights, DECAY).loss_sum


@pytest.mark.parametrize("window", [None, 6])
def test_flex_attention_and_its_gradients_equal_dense_attention(window):
    config = tiny_config(window=window)
    blocks = batch_of_documents(*random_samples(lengths=(300, 40, 90), num_anchors=(60, 9, 20))).blocks.to(CUDA)
    num_slots = 89 * 8
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(1, heads, length, 16, generator=generator).to(CUDA)
        for heads, length in ((4, num_slots), (2, blocks.num_context + num_slots), (2, blocks.num_context + num_slots))
    ]
    masks = block_masks(blocks, config)
    for kind in set(config.layer_types):
        ours, theirs = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
        rule = sees(blocks, block_size=8, window=window_of(kind, config))
        keys = torch.arange(tensors[1].shape[2], device=CUDA)
        dense = rule(0, 0, torch.arange(num_slots, device=CUDA)[:, None], keys[None])
        mixed = attend_flex(*ours, masks[kind])
        expected = functional.scaled_dot_product_attention(*theirs, attn_mask=dense, enable_gqa=True)
        torch.testing.assert_close(mixed, expected, rtol=2e-3, atol=2e-3)
        mixed.square().sum().backward()
        expected.square().sum().backward()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("lengths", "anchors"), SIZES)
def test_the_loss_is_that_of_a_cpu(lengths, anchors):
    config = tiny_config(window=12)
    batch = random_batch(lengths=lengths, num_anchors=anchors)
    on_cpu = loss_of(strong_drafter(config), FrozenTarget(tiny_model(), tap_layer_ids=TAPS), batch)
    assert float(loss_of(drafter_of(config), on_cuda(), batch)) == pytest.approx(float(on_cpu), rel=2e-3)


def test_bfloat16_over_float32_weights_comes_near():
    config = tiny_config()
    batch = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    exact = loss_of(drafter_of(config), on_cuda(), batch)
    drafter = drafter_of(config)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = loss_of(drafter, on_cuda(torch.bfloat16), batch)
    half.backward()
    assert float(half) == pytest.approx(float(exact), rel=0.05)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in drafter.parameters())


def test_the_host_waits_for_the_device_once_a_step():
    """Anything that waits inside the micro-batches raises; the step's own reading of its sums is after them."""
    drafter, target = drafter_of(tiny_config()), on_cuda(torch.bfloat16)
    batches = (prepared(0), prepared(1))
    ranks = Ranks(rank=0, world_size=1, device=CUDA)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3, fused=True)

    def step():
        return run_step(
            drafter, target, optimizer, batches, objective=DECAY, ranks=ranks, max_gradient_norm=1.0, wishes=Wishes()
        )

    step()  # Kernels are compiled, which waits.
    waits = []
    reading = torch.Tensor.tolist
    with pytest.MonkeyPatch.context() as patch:

        def tolist(tensor):
            if not tensor.is_cuda:
                return reading(tensor)
            waits.append(tensor.shape)
            torch.cuda.set_sync_debug_mode("default")
            try:
                return reading(tensor)
            finally:
                torch.cuda.set_sync_debug_mode("error")

        patch.setattr(torch.Tensor, "tolist", tolist)
        torch.cuda.set_sync_debug_mode("error")
        try:
            result = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert math.isfinite(result.loss)
    assert len(waits) == 1


@pytest.mark.parametrize(
    "execution", [Execution(recompute=True), Execution(compiled=True)], ids=["recompute", "compile"]
)
def test_other_executions_give_the_same_loss(execution):
    config, target = tiny_config(), on_cuda()
    plain, other = drafter_of(config), drafter_of(config, execution)
    for lengths, anchors in SIZES:
        batch = random_batch(lengths=lengths, num_anchors=anchors)
        expected, found = loss_of(plain, target, batch), loss_of(other, target, batch)
        found.backward()
        assert float(found) == pytest.approx(float(expected), rel=2e-3)
