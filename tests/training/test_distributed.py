import copy
import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.training.distributed import Ranks, check_world_size, process_group, without_sync
from dflash_pipeline.training.step import Wishes, run_step
from tests.tiny_models import strong_drafter, tiny_config, tiny_target
from tests.training.test_step import OBJECTIVE, STEP
from tests.training.toy_run import ALONE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> list[dict]:
    """What each of two processes found after two steps over gloo."""
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.gloo_rank", str(out)],
            cwd=ROOT,
            env={**os.environ, **group, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_make_the_step_of_one(two_ranks):
    drafter = copy.deepcopy(strong_drafter(tiny_config()))
    optimizer = torch.optim.SGD(drafter.parameters(), lr=0.0)
    alone = run_step(
        drafter,
        tiny_target(),
        optimizer,
        STEP,
        objective=OBJECTIVE,
        ranks=ALONE,
        max_gradient_norm=1e9,
        wishes=Wishes(),
    )
    first = two_ranks[0]
    assert float.fromhex(first["losses"][0]) == pytest.approx(alone.loss, rel=1e-6)
    assert first["acceptance"] == pytest.approx(alone.expected_acceptance, rel=1e-9)
    assert first["norm"] == pytest.approx(alone.gradient_norm, rel=1e-4)
    assert first["anchors"] == alone.num_anchors
    for name, parameter in drafter.named_parameters():
        gradient = torch.tensor(first["gradients"][name]).view_as(parameter)
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_every_rank_has_the_same_numbers(two_ranks):
    first, second = two_ranks
    assert first == second


def test_one_ranks_wish_to_stop_is_every_ranks(two_ranks):
    assert [found["stops"] for found in two_ranks] == [[False, True], [False, True]]


def test_sums_are_exact_in_double_precision(two_ranks):
    assert two_ranks[0]["sums"] == [1.0, 0.2, 2.0**41 + 1]


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_the_shares_of_all_ranks_are_every_slot_once(world_size):
    shares = [Ranks(rank=rank, world_size=world_size, device=ALONE.device).share_of(8) for rank in range(world_size)]
    assert sorted(slot for share in shares for slot in share) == list(range(8))
    assert {len(share) for share in shares} == {8 // world_size}


def test_a_world_that_cannot_share_a_step_evenly_is_refused_with_those_that_can():
    with pytest.raises(Refused, match=r"3 ranks cannot share 8 slots evenly; use one of \[1, 2, 4, 8\]"):
        check_world_size(3, 8)
    for fine in (1, 2, 4, 8):
        check_world_size(fine, 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_refused():
    with (
        pytest.raises(Refused, match=r"training\.device: no CUDA device"),
        process_group(rank=0, local_rank=0, world_size=1, device="cuda"),
    ):
        pass


def test_alone_there_is_no_group():
    with process_group(rank=0, local_rank=0, world_size=1, device="cpu") as ranks:
        model = torch.nn.Linear(2, 2)
        assert ranks == ALONE
        assert ranks.is_first
        assert ranks.parallel(model) is model
        assert ranks.sum([1, math.pi]) == [1.0, math.pi]
        ranks.wait_for_all()
        with without_sync(model, skip=True):
            pass
    assert not torch.distributed.is_initialized()
