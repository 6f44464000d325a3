"""Tokens a second of draft-and-verify at several batch sizes, measured in turn in one process.

    python bench/decoding.py
    python bench/decoding.py --target DIR --draft DIR --prompts 16 --new-tokens 16

Prompts are questions of examples/conversations, and answers as long as in a recipe that does not say otherwise. Without
`--draft` the drafter is untrained: the ratios are what to look at, as all sizes decode the same. The CPU's clock is
disturbed less by other programs, but counts all threads; OMP_NUM_THREADS=1 makes it that of the wall.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from measure import best_in_turn

from dflash_pipeline.evaluation.decode_rows import Decoding, draft_and_verify_all, greedy_decode_all
from dflash_pipeline.evaluation.export import load_drafter
from dflash_pipeline.evaluation.prompts import read_prompts
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.model.config import default_tap_layer_ids, drafter_config
from dflash_pipeline.model.drafter import Drafter, DrafterCache
from dflash_pipeline.model.loading import load_config
from dflash_pipeline.model.target import FrozenTarget, cut_back

EXAMPLES = Path(__file__).parents[1] / "examples"
CLOCKS = ("wall", "cpu")
COLUMNS = [(what, clock) for what in ("drafting", "alone") for clock in CLOCKS]


def measured(
    target: FrozenTarget, drafter: Drafter, prompts: list[list[int]], *, sizes: list[int], new_tokens: int, times: int
) -> dict[str, dict[str, float]]:
    """Best tokens a second of every size after so many turns of all: drafting and alone, by both clocks."""
    rates: dict[str, dict[str, float]] = {str(size): {} for size in sizes}
    tokens: dict[int, list[tuple[int, ...]]] = {}
    for _, size in itertools.product(range(times), sizes):
        decoding = Decoding(max_new_tokens=new_tokens, stop_ids=frozenset(), batch_size=size)
        began = _clocks()
        decoded = draft_and_verify_all(target, drafter, prompts, decoding, numbers=range(len(prompts)))
        drafted = _clocks()
        greedy_decode_all(target, prompts, decoding)
        ended = _clocks()
        tokens[size] = [each.tokens for each in decoded]
        best = rates[str(size)]
        for clock in CLOCKS:
            for name, seconds in (
                ("drafting", drafted[clock] - began[clock]),
                ("alone", ended[clock] - drafted[clock]),
            ):
                key = f"{name}_{clock}"
                best[key] = max(best.get(key, 0.0), len(prompts) * new_tokens / seconds)
    assert all(found == tokens[sizes[0]] for found in tokens.values()), "batch sizes decode other tokens"
    return rates


def _clocks() -> dict[str, float]:
    return {"wall": time.perf_counter(), "cpu": time.process_time()}


def costs(target: FrozenTarget, drafter: Drafter, prompt: list[int], *, times: int = 30) -> dict[str, float]:
    """Time of a draft and of a verifying pass, each over a pass of the target for one token, after this prompt."""
    block_size, device = drafter.config.block_size, target.device
    cache, context = target.new_cache(), DrafterCache()
    _, features_SF = target.decode_step(torch.tensor(prompt, device=device), cache, num_logits=1)
    block_K = torch.full((block_size,), drafter.config.mask_token_id, device=device)
    drafter.draft(features_SF, target.embed(block_K), context)

    def passes(count: int) -> None:
        target.decode_step(block_K[:count], cache, num_logits=count)
        cut_back(cache, len(prompt))

    def draft() -> None:
        hidden_KH = drafter.draft(features_SF[-1:], target.embed(block_K), context)
        target.logits(hidden_KH[1:].to(target.dtype)).argmax(-1)

    best = best_in_turn({"draft": draft, "verify": lambda: passes(block_size), "one": lambda: passes(1)}, times=times)
    return {"cost_ratio": best["draft"] / best["one"], "verification": best["verify"] / best["one"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=EXAMPLES / "target")
    parser.add_argument("--draft", type=Path, help="an exported drafter; else an untrained one of three layers")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    drafter = load_drafter(options.draft).float() if options.draft else _untrained(options.target)
    target = FrozenTarget.load(options.target, tap_layer_ids=drafter.config.tap_layer_ids)
    renderer = ChatRenderer(options.target)
    read = read_prompts(
        EXAMPLES / "conversations" / "gsm8k_test.jsonl",
        render=renderer.prompt,
        tokenizer=renderer.tokenizer,
        limit=options.prompts,
    )
    prompts = [prompt.ids.tolist() for prompt in read]
    began = time.perf_counter()
    rates = measured(target, drafter, prompts, sizes=options.sizes, new_tokens=options.new_tokens, times=options.times)
    first = rates[str(options.sizes[0])]
    found = {
        "threads": torch.get_num_threads(),
        "prompts": len(prompts),
        "tokens_per_second": rates,
        "ratio": {size: {name: rate[name] / first[name] for name in rate} for size, rate in rates.items()},
        "costs": costs(target, drafter, prompts[0]),
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(found) if options.json else _table(found))


def _untrained(target: Path) -> Drafter:
    config = load_config(target)
    depth = config.get_text_config(decoder=True).num_hidden_layers
    shape = drafter_config(
        config,
        num_layers=3,
        block_size=8,
        tap_layer_ids=default_tap_layer_ids(depth, 3) if depth > 6 else (0, 1, 2),
        mask_token_id=3,
        intermediate_size=None,
    )
    return Drafter.initialised(shape, 0).eval()


def _table(found: dict) -> str:
    lines = [f"{found['threads']} threads, {found['prompts']} prompts; tokens a second (against the first)"]
    lines.append("batch" + "".join(f"{what:>15} {clock:>4}" for what, clock in COLUMNS))
    for size, rate in found["tokens_per_second"].items():
        ratio = found["ratio"][size]
        keys = [f"{what}_{clock}" for what, clock in COLUMNS]
        lines.append(f"{size:>5}" + "".join(f"{rate[key]:>12,.0f} ({ratio[key]:5.2f})" for key in keys))
    cost = found["costs"]
    lines.append(f"cost ratio {cost['cost_ratio']:.2f}, verification {cost['verification']:.2f}, at batch 1")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
