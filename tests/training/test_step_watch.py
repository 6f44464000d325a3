"""A rank that hangs is told from one that waits for it by where its main thread stands."""

import threading
import time

import pytest

from dflash_pipeline.training.step_watch import WAITING_FACTOR, StepWatch

SECONDS = 0.4


def watched(work) -> tuple[list[str], float]:
    """The reports of a watch over a thread that runs `work(beat)`, and how long the first one took."""
    reports: list[str] = []
    spoke = threading.Event()
    took = []

    def main():
        began = time.monotonic()
        watch = StepWatch(seconds=SECONDS, rank=3, end=lambda text: (reports.append(text), spoke.set())).start()
        work(watch.beat, spoke)
        took.append(time.monotonic() - began)
        watch.stop()

    thread = threading.Thread(target=main)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return reports, took[0]


def stand_still(beat, spoke):
    beat("epoch 1 step 7")
    spoke.wait(20)


def test_a_rank_that_hangs_says_where():
    [report], took = watched(stand_still)
    assert "rank 3 hangs: no progress for 0.4 s at epoch 1 step 7" in report
    assert "in stand_still" in report
    assert report.rstrip().splitlines()[-1].startswith("rank 3 hangs")
    assert took >= SECONDS


def test_one_that_waits_for_others_is_given_longer():
    source = "def wait(spoke):\n    while not spoke.is_set():\n        pass\n"
    scope: dict = {}
    exec(compile(source, "site-packages/torch/distributed/distributed_c10d.py", "exec"), scope)
    [report], took = watched(lambda beat, spoke: scope["wait"](spoke))
    assert "rank 3 waits for another rank that has stopped: no progress for 0.4 s at the start" in report
    assert took >= SECONDS * WAITING_FACTOR


@pytest.mark.parametrize("pause", [SECONDS / 8])
def test_one_that_goes_on_is_left_alone(pause):
    def go_on(beat, spoke):
        for step in range(20):
            beat(f"step {step}")
            time.sleep(pause)

    assert watched(go_on)[0] == []
