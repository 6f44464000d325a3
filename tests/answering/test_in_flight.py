"""Many things at once: so many and no more, each once, errors passed on, and nothing waited for at the end."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.answering.in_flight import in_flight


@given(items=st.lists(st.integers(), max_size=30), concurrency=st.integers(1, 9))
def test_every_item_is_done_once(items, concurrency):
    stop = threading.Event()
    done = list(in_flight(items, lambda item: item * 2, concurrency=concurrency, stop=stop))
    assert sorted(done) == sorted((item, item * 2) for item in items)
    assert stop.is_set()


def test_so_many_run_at_once_and_no_more_are_taken():
    running, most, taken, lock = 0, 0, 0, threading.Lock()

    def items():
        nonlocal taken
        for item in range(40):
            taken += 1
            yield item

    def act(item):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        return item

    for given_out, _ in enumerate(in_flight(items(), act, concurrency=5, stop=threading.Event()), start=1):
        assert taken <= given_out + 5
    assert most == 5


def test_results_come_as_they_are_done():
    slow = threading.Event()

    def act(item):
        if item == 0:
            slow.wait(5)
        elif item == 3:
            slow.set()
        return item

    order = [item for item, _ in in_flight(range(4), act, concurrency=2, stop=threading.Event())]
    assert order.index(0) >= 2


def test_an_error_is_raised_where_results_are_taken_and_stops_the_rest():
    stop = threading.Event()

    def act(item):
        if item == 3:
            raise ZeroDivisionError("three")
        return item

    with pytest.raises(ZeroDivisionError, match="three"):
        list(in_flight(range(10**9), act, concurrency=2, stop=stop))
    assert stop.is_set()


def test_whoever_stops_early_waits_for_nobody():
    stop, began = threading.Event(), time.monotonic()
    with closing(in_flight(range(9), lambda item: item and stop.wait(20), concurrency=3, stop=stop)) as results:
        next(results)
    assert time.monotonic() - began < 5
    assert stop.is_set()
