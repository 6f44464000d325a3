"""Many things done at once by threads: so many and no more, results as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Done(NamedTuple, Generic[Item, Result]):
    item: Item
    results: tuple[Result, ...]
    """One, or none when there was an error."""
    error: BaseException | None


def in_flight(
    items: Iterable[Item], act: Callable[[Item], Result], *, concurrency: int, stop: threading.Event
) -> Generator[tuple[Item, Result]]:
    """Each item with what `act` makes of it, in the order in which they are done.

    An item is taken when there is a thread for it. What `act` raises is raised here. When the iteration ends, by itself
    or because it is closed, `stop` is set; threads that are still at work are not waited for, and do not keep the
    process alive.
    """
    waiting: SimpleQueue[tuple[Item] | None] = SimpleQueue()
    done: SimpleQueue[_Done[Item, Result]] = SimpleQueue()

    def work() -> None:
        while (given := waiting.get()) is not None:
            [item] = given
            try:
                done.put(_Done(item, (act(item),), None))
            except BaseException as error:
                done.put(_Done(item, (), error))

    rest, started, running = iter(items), 0, 0
    try:
        while True:
            for item in islice(rest, concurrency - running):
                waiting.put((item,))
                running += 1
                if running > started:
                    threading.Thread(target=work, daemon=True).start()
                    started += 1
            if not running:
                return
            finished = done.get()
            running -= 1
            if finished.error is not None:
                raise finished.error
            yield finished.item, finished.results[0]
    finally:
        stop.set()
        for _ in range(started):
            waiting.put(None)
