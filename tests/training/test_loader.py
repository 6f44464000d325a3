import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.batching import BatchingSpec
from dflash_pipeline.contracts.corpus import SampleLengths
from dflash_pipeline.contracts.errors import ContractBroken
from dflash_pipeline.contracts.plan import Position
from dflash_pipeline.planning.manifest import build_epoch_manifest
from dflash_pipeline.training.distributed import Ranks
from dflash_pipeline.training.loader import STEPS_AHEAD, EpochLoader
from tests.training.toy_run import ALONE

LENGTHS = np.tile(np.arange(4, 64), 3)
SPEC = BatchingSpec(strategy="bucket", token_budget=128, slots_per_step=4, boundaries=(16, 32, 64), seed=1)
MANIFEST = build_epoch_manifest(
    SampleLengths(snapshot="s", num_tokens=LENGTHS, num_supervised=LENGTHS - 1), SPEC, epoch=2
)


def place(micro_batch):
    return micro_batch.step, micro_batch.slot


def loader(*, step=0, slots=range(4), collate=place):
    return EpochLoader(MANIFEST, at=Position(epoch=2, step=step), slots=slots, collate=collate)


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "loader"]


@given(st.integers(0, MANIFEST.num_steps), st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_it_serves_exactly_the_ranks_slots_of_every_step_left_in_order(step, world_size, rank):
    rank %= world_size
    slots = Ranks(rank=rank, world_size=world_size, device=ALONE.device).share_of(4)
    served = [(p.step, p.batches) for p in loader(step=step, slots=slots)]
    assert served == [
        (s, tuple((s, slot) for slot in range(rank, 4, world_size))) for s in range(step, MANIFEST.num_steps)
    ]


def test_the_ranks_together_serve_every_slot_once():
    parts = [loader(slots=range(rank, 4, 2)) for rank in range(2)]
    served = sorted(place for part in parts for prepared in part for place in prepared.batches)
    assert MANIFEST.num_steps > STEPS_AHEAD  # Otherwise the reader never lags behind the thread.
    assert served == [(step, slot) for step in range(MANIFEST.num_steps) for slot in range(4)]


def test_a_second_pass_is_refused():
    once = loader()
    list(once)
    with pytest.raises(ContractBroken, match="build another loader"):
        iter(once)


@pytest.mark.parametrize("at", [Position(epoch=1, step=0), Position(epoch=2, step=MANIFEST.num_steps + 1)])
def test_a_position_outside_the_manifest_is_refused(at):
    with pytest.raises(ContractBroken, match=f"epoch {at.epoch} step {at.step}"):
        EpochLoader(MANIFEST, at=at, slots=range(4), collate=place)


def test_a_failure_in_preparation_arrives_where_the_step_is_taken():
    def fail_in_step_three(micro_batch):
        if micro_batch.step == 3:
            raise OSError("the shard is gone")
        return place(micro_batch)

    served = []
    with pytest.raises(OSError, match="the shard is gone"):
        served.extend(p.step for p in loader(collate=fail_in_step_three))
    assert not loader_threads()


def test_steps_before_a_failure_are_served():
    def fail_in_step_three(micro_batch):
        if micro_batch.step == 3:
            raise OSError
        return place(micro_batch)

    steps = iter(loader(collate=fail_in_step_three))
    assert [next(steps).step for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError):  # noqa: PT011  The bare error is the point.
        next(steps)


def test_closing_early_stops_the_thread():
    prepared = set()
    steps = iter(loader(collate=lambda b: prepared.add(b.step)))
    next(steps)
    assert loader_threads()
    steps.close()
    assert not loader_threads()
    assert max(prepared) <= STEPS_AHEAD + 2 < MANIFEST.num_steps  # And it never ran far ahead.


def test_it_has_no_length_and_no_epoch_to_set():
    assert not hasattr(loader(), "__len__")
    assert not hasattr(loader(), "set_epoch")
    assert not hasattr(MANIFEST, "__len__")
