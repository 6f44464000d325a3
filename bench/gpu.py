"""On one card: a step's time, tokens a second, and its share of what a large matrix product reaches on the same card.

    python bench/gpu.py

A target and a drafter with the sizes of Qwen3-8B and of z-lab's drafter for it, random; micro-batches of the reference
lengths, bfloat16 over float32 weights, as training runs them. Counted are the products that the step has to make: of
the target's layers up to its last tap, of the drafter forward and backward, and of the output head at weighted slots.
Needs a card with about 80 GiB; says so and ends without one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from reference_lengths import reference_lengths
from step_inputs import DIMS, drafter_config_of
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_pipeline.contracts.manifest import MicroBatch
from dflash_pipeline.model.anchors import sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import TrainingBatch, in_rows, place_blocks
from dflash_pipeline.model.config import DrafterConfig, Execution
from dflash_pipeline.model.drafter import Drafter
from dflash_pipeline.model.objective import Objective, planned_weights
from dflash_pipeline.model.target import FrozenTarget
from dflash_pipeline.training.collate import PreparedBatch
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.step import Wishes, run_step

GOAL = 0.5
OBJECTIVE = Objective(weighting="decay", decay=7.0)
CUDA = torch.device("cuda")


def target_of(config: DrafterConfig) -> FrozenTarget:
    """Random, in bfloat16, of as many layers as the drafter's config says."""
    sizes = Qwen3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_target_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        tie_word_embeddings=False,
    )
    sizes._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    try:
        with CUDA:
            model = Qwen3ForCausalLM(sizes)
    finally:
        torch.set_default_dtype(torch.float32)
    return FrozenTarget(model, tap_layer_ids=config.tap_layer_ids)


def batch_of(config: DrafterConfig, rows: int, length: int, anchors: int) -> PreparedBatch:
    """Rows of about one length, as a window's micro-batches are, supervised from a quarter on."""
    drawn = reference_lengths(200_000)
    near = drawn[(drawn > length * 0.97) & (drawn <= length)][:rows]
    random = np.random.default_rng(0)
    lengths, width = near.tolist(), int(near.max())
    ids, mask = torch.zeros(rows, width, dtype=torch.int64), torch.zeros(rows, width, dtype=torch.bool)
    for row, end in enumerate(lengths):
        ids[row, :end] = torch.from_numpy(random.integers(0, config.vocab_size - 1, end))
        mask[row, end // 4 : end] = True
    chosen = [
        sample_anchors(row.numpy()[:end], share=2 / config.block_size, most=anchors, seed=0, epoch=0, sample_id=at)
        for at, (row, end) in enumerate(zip(mask, lengths, strict=True))
    ]
    documents = in_rows(lengths)
    batch = TrainingBatch(
        input_ids=ids, loss_mask=mask, documents=documents, blocks=place_blocks(chosen, documents, width=width)
    )
    weights = planned_weights(supervised_slots(mask, batch.blocks, block_size=config.block_size), OBJECTIVE)
    source = MicroBatch(
        epoch=0,
        step=0,
        slot=0,
        sample_ids=np.arange(rows),
        padded_length=width,
        num_tokens=sum(lengths),
        supervised_tokens=int(mask.sum()),
        cost=1.0,
        filler=False,
    )
    return PreparedBatch(
        source=source,
        batch=batch.pinned(),
        weights=weights,
        weight=float(weights.sum(dtype=torch.float64)),
        num_anchors=sum(a.size for a in chosen),
    )


def products(config: DrafterConfig, prepared: PreparedBatch) -> float:
    """Floating-point operations that the step cannot do without: two a weight and row of each product, and attention's.

    A drafter's weight is used three times (forward, by input, by weight), the frozen head's twice.
    """
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    layer = hidden * (2 * queries + 2 * keys + 3 * inner)
    rows, width = prepared.batch.input_ids.shape
    blocks = prepared.batch.blocks
    slots, context = blocks.anchors.numel() * config.block_size, blocks.num_context
    target_layers = max(config.tap_layer_ids) + 1
    target = 2 * rows * width * layer * target_layers + 2 * 2 * rows * width**2 / 2 * queries * target_layers
    of_slots = config.num_layers * slots * layer
    of_context = context * hidden * (len(config.tap_layer_ids) * hidden + config.num_layers * 2 * keys)
    seen = float((blocks.context_ends - blocks.context_starts).sum()) * config.block_size + slots * config.block_size
    attention = config.num_layers * 2 * 2 * seen * queries * 3.5  # Backward makes two and a half times the products.
    head_products = 2 * 2 * int((prepared.weights > 0).sum()) * config.vocab_size * hidden
    return target + 3 * 2 * (of_slots + of_context) + attention + head_products


def seconds_of(work: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def peak_rate() -> float:
    """Operations a second of a large product in bfloat16."""
    size = 8192
    a, b = (torch.randn(size, size, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    torch.matmul(a, b)
    return 2 * size**3 / seconds_of(lambda: torch.matmul(a, b), 20)


def measure(config: DrafterConfig, target: FrozenTarget, execution: Execution, prepared: PreparedBatch) -> None:
    drafter = Drafter.initialised(config, 0, execution).to(CUDA)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-4, fused=True)
    ranks = Ranks(rank=0, world_size=1, device=CUDA)

    def step() -> object:
        return run_step(
            drafter,
            target,
            optimizer,
            (prepared,),
            objective=OBJECTIVE,
            ranks=ranks,
            max_gradient_norm=1.0,
            wishes=Wishes(),
        )

    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    seconds = seconds_of(step, 10)
    share = products(config, prepared) / seconds / peak_rate()
    memory = torch.cuda.max_memory_allocated() / 2**30
    rows, width = prepared.batch.input_ids.shape
    print(
        f"| {rows} x {width:,} | {prepared.num_anchors:,} | {execution.recompute} | {execution.compiled} "
        f"| {seconds * 1e3:.0f} | {prepared.source.num_tokens / seconds:,.0f} | {share:.0%} | {memory:.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anchors", type=int, default=512, help="of a row, at most")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no CUDA device is visible")
        return
    config = drafter_config_of(DIMS["8b"], 16)
    target = target_of(config)
    print(f"{torch.cuda.get_device_name()}; goal {GOAL:.0%} of a large product's rate")
    print("| rows | blocks | recompute | compiled | ms a step | tokens/s | of the peak | GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for rows, length in ((16, 1_024), (8, 2_048), (2, 8_192)):
        prepared = batch_of(config, rows, length, given.anchors)
        for execution in (Execution(), Execution(compiled=True), Execution(recompute=True)):
            measure(config, target, execution, prepared)


if __name__ == "__main__":
    main()
