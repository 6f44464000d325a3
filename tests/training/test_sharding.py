"""Sharded or not, a run trains the same drafter: losses, gradients, weights, and checkpoints in either direction."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PreTrainedConfig,
)

from dflash_pipeline.model.objective import Objective
from dflash_pipeline.store.records import save_record
from dflash_pipeline.training.settings import LaunchConfig, Sharding
from tests.training.test_loop import LENGTHS, SPEC
from tests.training.toy_run import plan_of, train, write_toy

ROOT = Path(__file__).parents[2]
WHOLE, PARTS = Sharding(), Sharding(drafter="fsdp", target="fsdp")
STOP = 4


def toy(folder: Path, *, slots: int) -> LaunchConfig:
    """Four micro-batches a step, so that two ranks accumulate; an odd width, so that their parts differ in size."""
    config = write_toy(folder, lengths=LENGTHS, spec=replace(SPEC, slots_per_step=slots, token_budget=45), epochs=2)
    # A norm that is never reached: AdamW alone would hide a gradient that is too large by a factor.
    settings = replace(config.settings, max_gradient_norm=1e9)
    drafter = replace(config.drafter, num_layers=2, layer_types=("full_attention",) * 2, intermediate_size=25)
    return replace(config, drafter=drafter, settings=settings)


def run_attempts(folder: Path, attempts: list[tuple[LaunchConfig, int]], *, num_ranks: int) -> list[list[dict]]:
    """What each rank found in each attempt; all attempts in one process group, as processes take long to start."""
    listed = []
    for number, (config, stop_after) in enumerate(attempts):
        save_record(folder / f"launch-{number}.json", config)
        listed.append((str(folder / f"launch-{number}.json"), stop_after))
    (folder / "attempts.json").write_text(json.dumps(listed))
    run_ranks("gloo_sharding", folder, num_ranks=num_ranks)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(num_ranks)]


def run_ranks(module: str, folder: Path, *, num_ranks: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.training.{module}", str(folder)],
            cwd=ROOT,
            env={**os.environ, **group, "RANK": str(rank)},
        )
        for rank in range(num_ranks)
    ]
    assert [process.wait(timeout=240) for process in ranks] == [0] * num_ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sharding")


@pytest.fixture(scope="module")
def config(folder) -> LaunchConfig:
    return toy(folder, slots=4)


@pytest.fixture(scope="module")
def deep(config) -> LaunchConfig:
    """With all that the objective can ask for: weights known only after the forward, and all of the target."""
    objective = Objective(weighting="dpace", decay=2.0, kl=0.5)
    return replace(config, settings=replace(config.settings, objective=objective))


@pytest.fixture(scope="module")
def found(folder, config, deep) -> dict[str, list[dict]]:
    """What both ranks found, by attempt."""
    total = plan_of(config).total_steps
    attempts = {
        "whole": (config, "whole", WHOLE, total),
        "parts": (config, "parts", PARTS, total),
        "whole, then": (config, "whole-parts", WHOLE, STOP),
        "then parts": (config, "whole-parts", PARTS, total),
        "parts, then": (config, "parts-whole", PARTS, STOP),
        "then whole": (config, "parts-whole", WHOLE, total),
        "deep whole": (deep, "deep-whole", WHOLE, STOP),
        "deep parts": (deep, "deep-parts", PARTS, STOP),
        "again, then": (config, "parts-parts", PARTS, STOP),
        "then again": (config, "parts-parts", PARTS, total),
    }
    listed = [
        (replace(config, run_dir=str(folder / run), sharding=sharding), stop)
        for config, run, sharding, stop in attempts.values()
    ]
    per_rank = run_attempts(folder, listed, num_ranks=2)
    return {name: [ranks[number] for ranks in per_rank] for number, name in enumerate(attempts)}


def saved(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """Weights and moments of a checkpoint."""
    path = folder / "checkpoints" / f"step_{step:07d}"
    return {**load_file(path / "model.safetensors"), **load_file(path / "optimizer.safetensors")}


def assert_same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(
            tensor, theirs[name], rtol=1e-3, atol=1e-5, msg=lambda text, at=name: f"{at}: {text}"
        )


def test_losses_and_gradients_are_those_of_whole_weights(found):
    [parts, _], [whole, _] = found["parts"], found["whole"]
    assert len(parts["losses"]) == len(whole["losses"]) > 10
    assert parts["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert parts["norms"] == pytest.approx(whole["norms"], rel=1e-4)


def test_so_they_are_with_every_kind_of_loss(found):
    [parts, _], [whole, _] = found["deep parts"], found["deep whole"]
    assert parts["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert parts["norms"] == pytest.approx(whole["norms"], rel=1e-4)


def test_every_rank_has_the_same_numbers(found):
    for first, second in found.values():
        assert (first["losses"], first["norms"]) == (second["losses"], second["norms"])


def test_weights_and_moments_are_saved_whole_and_are_the_same(folder, found, config):
    last = found["whole"][0]["last"]
    assert last == plan_of(config).total_steps
    assert_same_tensors(saved(folder / "parts", last), saved(folder / "whole", last))


@pytest.mark.parametrize(("run", "second"), [("whole-parts", "then parts"), ("parts-whole", "then whole")])
def test_a_run_goes_on_sharded_otherwise(folder, found, run, second):
    whole = found["whole"][0]
    [then, _] = found[second]
    assert (then["first"], then["last"]) == (STOP, whole["last"])
    assert then["losses"] == pytest.approx(whole["losses"][STOP:], rel=1e-4)
    assert_same_tensors(saved(folder / run, whole["last"]), saved(folder / "whole", whole["last"]))


def test_in_parts_a_resumed_run_is_the_uninterrupted_one(folder, found):
    whole, *parts = (found[name][0] for name in ("parts", "again, then", "then again"))
    assert [loss for part in parts for loss in part["losses"]] == whole["losses"]
    ours, theirs = (saved(folder / run, whole["last"]) for run in ("parts-parts", "parts"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_sharded_run_goes_on_alone(folder, found, config, tmp_path):
    name = Path("checkpoints") / f"step_{STOP:07d}"
    shutil.copytree(folder / "parts-parts" / name, tmp_path / "alone" / name)
    then = train(replace(config, sharding=PARTS), run_dir=tmp_path / "alone")
    assert then.outcome.first_step == found["again, then"][0]["last"] == STOP
    losses = [float.fromhex(loss) for _, loss in then.recorder.losses]
    assert losses == pytest.approx(found["whole"][0]["losses"][STOP:], rel=1e-4)


def test_each_rank_holds_a_part(found):
    parts, whole = found["parts"], found["whole"][0]
    for kind in ("drafter", "moments", "layers"):
        assert sum(rank[kind] for rank in parts) == whole[kind]
        assert max(rank[kind] for rank in parts) < 0.55 * whole[kind]
    assert [rank["table"] for rank in parts] == [whole["table"]] * 2


def test_a_target_that_is_only_run_forward_remembers_no_pass(found):
    assert [rank["noted"] for rank in (*found["parts"], *found["deep parts"])] == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [3, 6])
def test_parts_of_any_size(tmp_path, num_ranks):
    config = toy(tmp_path, slots=6)
    attempts = [
        (replace(config, run_dir=str(tmp_path / name), sharding=sharding), STOP)
        for name, sharding in (("whole", WHOLE), ("parts", PARTS), ("target", Sharding(target="fsdp")))
    ]
    [whole, parts, target], *_ = run_attempts(tmp_path, attempts, num_ranks=num_ranks)
    assert parts["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert target["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert_same_tensors(saved(tmp_path / "parts", STOP), saved(tmp_path / "whole", STOP))


SHAPE = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
KINDS: dict[str, PreTrainedConfig] = {
    "one table for both": LlamaConfig(**SHAPE, intermediate_size=24, num_key_value_heads=1, tie_word_embeddings=True),
    "positions are learned": GPT2Config(vocab_size=61, n_embd=16, n_layer=4, n_head=2, n_positions=64),
    "layers two levels down": OPTConfig(**SHAPE, ffn_dim=24, word_embed_proj_dim=16, max_position_embeddings=64),
    "experts": MixtralConfig(**SHAPE, intermediate_size=24, num_key_value_heads=1, num_local_experts=4),
    "layers side by side": GPTNeoXConfig(**SHAPE, intermediate_size=24),
}


@pytest.mark.slow
def test_targets_of_other_kinds(tmp_path):
    for name, config in KINDS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
    run_ranks("gloo_targets", tmp_path, num_ranks=2)
