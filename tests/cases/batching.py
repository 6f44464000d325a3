"""`bt_`: lengths, a budget and rules to manifests; by every strategy.

`policies` are for samples above the budget (`truncate` is ingestion's: such samples go through the tokenising stage
with the budget as their longest length), `tail_policies` for an unfilled last step, `cases` are several inputs.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from dflash_pipeline.contracts.batching import BatchingSpec, Strategy
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.contracts.manifest import EpochManifest
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.tokenise import TokenRule, tokenise
from dflash_pipeline.planning.boundaries import optimise_boundaries
from dflash_pipeline.planning.lengths import length_statistics
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.store.plans import epoch_file, save_epoch
from tests.cases.chat import conversation_of, tokenizer_folder

FIXTURES = Path(__file__).parent / "fixtures"
DEFAULT_STRATEGY: Strategy = "bucket"
DEFAULT_BUCKETS = 6
DEFAULT_EPOCHS = (0, 1)
BUDGET_COUNTS = "padded tokens"
OVERLONG = {"drop": "drop", "error": "refuse", "refuse": "refuse"}


def observe(path: Path) -> dict[str, Any]:
    case = json.loads(path.read_text(encoding="utf-8"))
    if case.get("budget_counts", BUDGET_COUNTS) != BUDGET_COUNTS:
        return {"not_observed": f"a budget here counts {BUDGET_COUNTS}, not {case['budget_counts']}"}
    if "cases" in case:
        common = {key: value for key, value in case.items() if key != "cases"}
        return {"cases": [_observe_one(common | one) for one in case["cases"]]}
    return _observe_one(case)


def _observe_one(case: Mapping[str, Any]) -> dict[str, Any]:
    if "policies" in case:
        return {"by_policy": {policy: _with_policy(case, policy) for policy in case["policies"]}}
    if "tail_policies" in case:
        return {"by_tail_policy": {tail: _by_strategy(case, tail=tail) for tail in case["tail_policies"]}}
    return _by_strategy(case)


def _with_policy(case: Mapping[str, Any], policy: str) -> dict[str, Any]:
    if policy != "truncate":
        return _by_strategy(case, overlong=OVERLONG.get(policy, policy))
    lengths, cut = _truncated(case["lengths"], case["budget"])
    return {"lengths": lengths, "cut": cut} | _by_strategy({**case, "lengths": lengths})


def _by_strategy(case: Mapping[str, Any], *, overlong: str = "refuse", tail: str = "fill") -> dict[str, Any]:
    """Facts of the case's strategy or else the default one, and beside them those of every strategy."""
    found = {
        strategy: _planned(case, strategy, overlong=case.get("overlong", overlong), tail=case.get("tail", tail))
        for strategy in get_args(Strategy)
    }
    chosen = case.get("strategy", DEFAULT_STRATEGY)
    return {"strategy": chosen} | found[chosen] | {"by_strategy": found}


def _planned(case: Mapping[str, Any], strategy: Any, *, overlong: Any, tail: Any) -> dict[str, Any]:
    """Boundaries and epochs, or the sentence that refuses them."""
    try:
        lengths = np.array(case["lengths"], dtype=np.int64)
        samples = SampleLengths(snapshot="case", num_tokens=lengths, num_supervised=lengths)
        boundaries = optimise_boundaries(
            length_statistics(samples), num_buckets=case.get("buckets", DEFAULT_BUCKETS), grid=case.get("grid", 1)
        )
        spec = BatchingSpec(
            strategy=strategy,
            token_budget=case["budget"],
            slots_per_step=case.get("world_size", 1),
            boundaries=boundaries,
            padding=case.get("padding", "batch-max"),
            seed=case.get("seed", 0),
            tail=tail,
            overlong=overlong,
        )
        epochs = [build_epoch_manifest(samples, spec, epoch=epoch) for epoch in _epochs(case)]
    except DflashError as error:
        return {"refused": str(error)}
    facts = [_epoch_facts(manifest) for manifest in epochs]
    return {
        "boundaries": [0, *boundaries],
        "used_buckets": int(np.unique(np.searchsorted(boundaries, lengths[lengths > 0])).size),
        "epochs": facts,
    }


def _epochs(case: Mapping[str, Any]) -> Sequence[int]:
    given = case.get("epochs", DEFAULT_EPOCHS)
    return range(given) if isinstance(given, int) else given


def _epoch_facts(manifest: EpochManifest) -> dict[str, Any]:
    batches = [b for step in range(manifest.num_steps) for b in manifest.step_batches(step)]
    real, fillers = [b for b in batches if not b.filler], [b for b in batches if b.filler]
    scheduled = [i for b in real for i in b.sample_ids.tolist()]
    return {
        "epoch": manifest.epoch,
        "steps": manifest.num_steps,
        "batches": [b.sample_ids.tolist() for b in real],
        "batches_per_rank": manifest.num_steps,
        "padded_tokens": [b.padded_tokens for b in real],
        "fillers": [{"step": b.step, "slot": b.slot, "samples": b.sample_ids.tolist()} for b in fillers],
        "dropped": manifest.dropped.tolist(),
        "scheduled": len(scheduled),
        "scheduled_once": len(scheduled) == len(set(scheduled)),
        "digest": manifest.digest(),
        "file_sha256": _file_sha256(manifest),
    }


def _file_sha256(manifest: EpochManifest) -> str:
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        save_epoch(Path(folder), manifest)
        return hashlib.sha256(epoch_file(Path(folder), manifest.epoch).read_bytes()).hexdigest()


def _truncated(lengths: Sequence[int], budget: int) -> tuple[list[int], list[int]]:
    """Lengths after tokenisation with the budget as `max_length`, and which samples it cut."""
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        renderer = ChatRenderer(
            tokenizer_folder(FIXTURES / "toy_tokenizer.json", Path(folder)), FIXTURES / "chatml.jinja"
        )
        frame = _num_tokens(renderer, "a", 2**30) - 1
        after = [
            length if length <= budget else _num_tokens(renderer, "a" * (length - frame), budget) for length in lengths
        ]
    return after, [i for i, (old, new) in enumerate(zip(lengths, after, strict=True)) if new < old]


def _num_tokens(renderer: ChatRenderer, answer: str, max_length: int) -> int:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]
    rows = [conversation_of({"id": "case", "messages": messages})]
    [sample] = tokenise(rows, renderer, TokenRule(max_length=max_length))
    return sample.num_tokens if isinstance(sample, Sample) else 0
