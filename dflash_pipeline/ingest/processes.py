"""Tokenising on every core: short inputs in this process, longer ones in others, in the order given either way.

One process keeps two cores busy, since the tokenizer works outside of Python; others are worth their start from three
on.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from multiprocessing import connection

from tokenizers import Encoding

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.ingest.tokenise import Outcome, Text, Tokeniser

Chunk = Sequence[Conversation]

CONVERSATIONS_AT_ONCE = 256
"""Conversations that a process gets together. Changes speed, never a token."""
CHARACTERS_AT_ONCE = 2**20
CHARACTERS_HERE = 8 * 2**20
"""Text that is tokenised before others are started: that takes them seconds."""
CHUNKS_AHEAD = 4
"""Texts that wait for the tokenizer while Python fetches more: fetching stalls now and then."""
CHUNKS_AT_ONCE = 2
"""Chunks at the tokenizer together: one that is done waits milliseconds for Python before the next can begin."""
MOST_PROCESSES = 16

_worker: Tokeniser


def default_processes() -> int:
    """One for each core this process may use."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


def in_chunks(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    """The conversations in groups, bounded in number and in text."""
    chunk: list[Conversation] = []
    characters = 0
    for conversation in conversations:
        chunk.append(conversation)
        characters += num_characters(conversation)
        if len(chunk) == CONVERSATIONS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def tokenise_chunks(chunks: Iterable[Chunk], tokeniser: Tokeniser, *, processes: int) -> Iterator[list[Outcome]]:
    """The outcomes of each chunk, in the order given, whatever the number of processes."""
    rest = iter(chunks)
    yield from _here(rest if processes <= 2 else _first(rest, CHARACTERS_HERE), tokeniser)
    following = next(rest, None)
    if following is not None:
        yield from _elsewhere(chain([following], rest), tokeniser, processes)


def num_characters(conversation: Conversation) -> int:
    """About how much text there is to tokenise."""
    if conversation.document is not None:
        return len(conversation.document)
    return sum(len(message.content) for message in conversation.messages)


def _first(chunks: Iterator[Chunk], characters: int) -> Iterator[Chunk]:
    while characters > 0 and (chunk := next(chunks, None)) is not None:
        characters -= sum(map(num_characters, chunk))
        yield chunk


def _here(chunks: Iterable[Chunk], tokeniser: Tokeniser) -> Iterator[list[Outcome]]:
    """The tokenizer needs no Python: it works on some chunks while the next ones are rendered."""
    begun: deque[tuple[Chunk, Sequence[Text], Future[list[Encoding]]]] = deque()

    def first_finished() -> list[Outcome]:
        chunk, rendered, encoding = begun.popleft()
        return tokeniser.finish(chunk, rendered, encoding.result())

    with ThreadPoolExecutor(CHUNKS_AT_ONCE) as threads:
        for chunk in chunks:
            rendered = tokeniser.render(chunk)
            begun.append((chunk, rendered, threads.submit(tokeniser.encode, rendered)))
            while len(begun) > CHUNKS_AHEAD or (begun and begun[0][2].done()):
                yield first_finished()
        while begun:
            yield first_finished()


def _elsewhere(chunks: Iterable[Chunk], tokeniser: Tokeniser, processes: int) -> Iterator[list[Outcome]]:
    # Spawned, not forked: this process has threads, of Arrow and of the tokenizer.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(tokeniser,))
    try:
        pending: deque[Future[list[Outcome]]] = deque()
        for chunk in chunks:
            pending.append(pool.submit(_work, chunk))
            # Enough that none waits, and no more: what waits is in memory.
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise Failed(
            "a process that tokenises ended without a word: it was killed, most often for want of memory",
            where="token_sequences",
            fix="run again with a smaller data.processes",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(tokeniser: Tokeniser) -> None:
    global _worker
    _worker = tokeniser
    # What is here by now stays: the collector need not look through it time and again.
    gc.freeze()
    # One core each: the tokenizer's own threads would take those of the others.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Ctrl-C reaches the whole group; the parent answers it, and ends these.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(chunk: Chunk) -> list[Outcome]:
    return _worker(chunk)
