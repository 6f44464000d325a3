"""What ingestion costs, end to end: `python bench/ingest.py [FILE] [--tokenizer DIR] [--json]`.

Rows are read, validated, stored, rendered, tokenised, masked and written by the pipeline's own stages, in a process of
its own and a new storage folder. In the same run the bare tokenizer (`encode_batch`, all cores) gets the same rendered
text, before and after. Without a file it takes long rows, made of the examples' questions and answers.

`ratio` is tokens/s against the bare tokenizer's by the clock; `cpu_ratio` is the same by processor time, which other
programs on the machine disturb less. Neither counts a tokenizer's loading, theirs or ours, which a process does once;
`ratio_with_loading` counts ours. `shares` are processor time of one process, step by step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.ingest.chat import ChatRenderer, Rendered
from dflash_pipeline.ingest.content import content_digest
from dflash_pipeline.ingest.processes import in_chunks
from dflash_pipeline.ingest.tokenise import Tokeniser, TokenRule, tokeniser
from dflash_pipeline.recipe import Data, Recipe, Responses, Source, Target
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.layout import Storage
from dflash_pipeline.store.warehouse import Warehouse

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "conversations").glob("*.jsonl"))
LONGEST = 2**20
ROWS_STEP_BY_STEP = 3_000


def main() -> None:
    asked = _arguments()
    if asked.worker:
        print(json.dumps(_end_to_end(asked.file, asked.tokenizer, Path(asked.worker), asked.processes)))
        return
    with tempfile.TemporaryDirectory(prefix="dflash-bench-") as name:
        folder = Path(name)
        file = asked.file or _long_rows(folder / "long.jsonl", asked.rows, asked.characters)
        if asked.times > 1:
            file = _repeated(file, folder / f"repeated{file.suffix}", asked.times)
        facts = _measured(file, asked.tokenizer, folder, asked.processes, memory_only=asked.memory_only)
    print(json.dumps(facts, indent=1) if asked.json else _text(facts))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="rows that `dflash ingest` takes; long ones of our own")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "examples" / "target")
    parser.add_argument("--rows", type=int, default=20_000, help="how many long rows to make")
    parser.add_argument("--characters", type=int, default=6_000, help="of each of them")
    parser.add_argument("--times", type=int, default=1, help="take each line so often, with a mark of its own")
    parser.add_argument("--processes", type=int, help="that tokenise; one a core without it")
    parser.add_argument("--memory-only", action="store_true", help="leave out what needs all text in memory at once")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measured(file: Path, tokenizer: Path, folder: Path, processes: int | None, *, memory_only: bool) -> dict[str, Any]:
    # Not by this file's name: processes that tokenise load the program they come from, and this one loads torch, which
    # `dflash` does not.
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import ingest; ingest.main()"
    order = [sys.executable, "-c", program, str(file), "--tokenizer", str(tokenizer)]
    order += ["--worker", str(folder / "storage")]
    options = [] if processes is None else ["--processes", str(processes)]
    if memory_only:
        return {"file_bytes": file.stat().st_size} | _answer(order + options)
    made, rendered = _prepared(file, tokenizer, folder / "other")
    texts = [r.text for r in rendered]
    bare = [_timed(lambda: _encode(made, texts))]
    found = _answer(order + options)
    bare.append(_timed(lambda: _encode(made, texts)))
    seconds, cpu = min(s for s, _ in bare), min(c for _, c in bare)
    tokens = found["num_tokens"]
    return {
        "file_bytes": file.stat().st_size,
        "cores": len(os.sched_getaffinity(0)),
        "tokens_per_row": tokens / max(found["num_samples"], 1),
        "bare_tokens_per_second": tokens / seconds,
        "bare_runs_seconds": [s for s, _ in bare],
        "tokens_per_second": tokens / found["seconds"],
        "ratio": seconds / found["seconds"],
        "cpu_ratio": cpu / found["cpu_seconds"],
        "ratio_with_loading": seconds / (found["seconds"] + found["loading_seconds"]),
        **found,
        "shares": _shares(made, folder / "other"),
    }


def _answer(order: list[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(subprocess.run(order, check=True, capture_output=True, text=True).stdout)
    return answer


def _end_to_end(file: Path, tokenizer: Path, root: Path, processes: int | None) -> dict[str, Any]:
    recipe, storage = _recipe(file, tokenizer, processes), Storage(root=root)
    # The bare tokenizer is loaded before its clock starts, and so are ours and the libraries around it.
    import transformers  # noqa: F401

    pa.array([""])  # Loads pandas.
    loading = time.perf_counter()
    _renderer(tokenizer)
    loaded = time.perf_counter() - loading
    memory = _Memory()
    began, cpu = time.perf_counter(), _cpu()
    ingestion = make_conversations(recipe, storage).record
    read = time.perf_counter()
    snapshot = make_snapshot(recipe, storage, ingestion, make_responses(recipe, storage, ingestion).record).record
    ended = time.perf_counter()
    return {
        "num_rows": ingestion.num_rows,
        "num_samples": snapshot.num_samples,
        "num_tokens": snapshot.num_tokens,
        "seconds": ended - began,
        "loading_seconds": loaded,
        "reading_seconds": read - began,
        "tokenising_seconds": ended - read,
        "cpu_seconds": _cpu() - cpu,
        "peak_bytes": memory.most(),
    }


class _Memory:
    """Watches what this process and those it started have in memory, all together."""

    def __init__(self) -> None:
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def most(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self._most = max(self._most, sum(map(_resident, _family())))


def _family() -> list[int]:
    found = [os.getpid()]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, _text_of(children).split())
    return found


def _resident(pid: int) -> int:
    pages = _text_of(Path(f"/proc/{pid}/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # A process that has just ended.
        return ""


def _prepared(file: Path, tokenizer: Path, root: Path) -> tuple[Tokeniser, list[Rendered]]:
    """The text that the bare tokenizer is to get."""
    recipe, storage = _recipe(file, tokenizer, 1), Storage(root=root)
    ingestion = make_conversations(recipe, storage).record
    made = tokeniser(_renderer(tokenizer), TokenRule(max_length=LONGEST))
    rendered = made.render(Warehouse(storage.warehouse).conversations(ingestion.fingerprint))
    return made, [r for r in rendered if isinstance(r, Rendered)]


def _renderer(tokenizer: Path) -> ChatRenderer:
    """With the table that its encoder makes at the first text."""
    renderer = ChatRenderer(tokenizer)
    renderer.encoder.encode([""])
    return renderer


def _encode(made: Tokeniser, texts: list[str]) -> None:
    # Some thousand at a time: all at once would need memory for every offset of every text.
    for begin in range(0, len(texts), 2_000):
        made.encoder.backend.encode_batch(texts[begin : begin + 2_000], add_special_tokens=False)


def _shares(made: Tokeniser, root: Path) -> dict[str, float]:
    """Microseconds of processor time a row, step by step in this process, of the first rows."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warehouse = Warehouse(Storage(root=root).warehouse)
    ingestion = warehouse.database.read(lambda c: c.execute("SELECT fingerprint FROM ingestions").fetchall())[-1][0]
    seconds: dict[str, float] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        seconds[name] = time.process_time() - began
        return result

    rows: list[Conversation] = step(
        "from the warehouse",
        lambda: list(islice((c for b in warehouse.stream_conversations(ingestion) for c in b), ROWS_STEP_BY_STEP)),
    )
    step("digests", lambda: [content_digest(row) for row in rows])
    chunks = list(in_chunks(rows))
    rendered = step("rendering and spans", lambda: [made.render(chunk) for chunk in chunks])
    encoded = step("tokenising", lambda: [made.encode(texts) for texts in rendered])
    step("masks", lambda: [made.finish(*parts) for parts in zip(chunks, rendered, encoded, strict=True)])
    return {name: 1e6 * spent / len(rows) for name, spent in seconds.items()}


def _recipe(file: Path, tokenizer: Path, processes: int | None) -> Recipe:
    first = json.loads(file.open(encoding="utf-8").readline()) if file.suffix == ".jsonl" else {}
    mapping: dict[Any, str] = {"user": "question", "assistant": "answer"} if "question" in first else {}
    return Recipe(
        name="bench",
        data=Data(sources=[Source(path=file, map=mapping)], max_length=LONGEST, processes=processes),
        target=Target(path=tokenizer),
        responses=Responses(enabled=False),
    )


def _long_rows(path: Path, number: int, characters: int) -> Path:
    rows = _examples()
    with path.open("w", encoding="utf-8") as file:
        for i in range(number):
            messages: list[dict[str, str]] = [{"role": "system", "content": f"Conversation {i}."}]
            while sum(len(m["content"]) for m in messages) < characters:
                question, answer = next(rows)
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"id": str(i), "messages": messages}) + "\n")
    return path


def _examples() -> Iterator[tuple[str, str]]:
    rows = [json.loads(line) for path in EXAMPLES for line in path.read_text(encoding="utf-8").splitlines()]
    while True:
        yield from ((row["question"], row["answer"]) for row in rows)


def _repeated(file: Path, path: Path, times: int) -> Path:
    """The lines again and again; a number in the question, or an id, tells them apart."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    with path.open("w", encoding="utf-8") as out:
        for n in range(times):
            for i, row in enumerate(lines):
                mark = {"question": f"{n} {row['question']}"} if "question" in row else {"id": f"{n}-{i}"}
                out.write(json.dumps(row | mark, ensure_ascii=False) + "\n")
    return path


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu


def _cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _text(facts: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {_shown(value)}" for name, value in facts.items())


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:,.3g}" if isinstance(value, float) and value < 1e3 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
