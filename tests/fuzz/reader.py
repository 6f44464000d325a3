"""Any bytes at all through the reader of source files: it may refuse them, and must do nothing else.

`python -m tests.fuzz.reader -max_total_time=60`; the options are libFuzzer's. Bytes that break it are written to a
file `build/fuzz/crash-…`, which the same command takes as an argument. Not a test: `make fuzz` runs it.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import get_args

import atheris

with atheris.instrument_imports(include=["dflash_pipeline.ingest"]):
    import pyarrow as pa

    from dflash_pipeline.contracts.candidate import Candidate
    from dflash_pipeline.contracts.conversation import RejectedRow
    from dflash_pipeline.contracts.errors import Refused
    from dflash_pipeline.ingest.formats import SUFFIXES
    from dflash_pipeline.ingest.ingestion import Rules, read_verdicts
    from dflash_pipeline.ingest.limits import Limits
    from dflash_pipeline.ingest.sources import SourceFile, look_at
    from dflash_pipeline.recipe import Format

RULES = Rules(
    max_rows=None,
    validation_fraction=0.1,
    limits=Limits(row_bytes=2000, depth=20, unpacked_bytes=2**20, unpacked_ratio=10),
)
FORMATS = (None, *get_args(Format))
NAMES = ("rows", *(f"rows{suffix}" for suffix in SUFFIXES))
MAPPINGS: tuple[dict[str, str], ...] = ({}, {}, {"user": "question", "assistant": "answer"}, {"text": "text"})
SEEDS = (
    b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"text","text":"a"}]}]}\n',
    b'{"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"{\\"name\\":\\"f\\"}"}]}\n',
    b'[{"instruction":"q","input":"","output":"a","history":[["q","a"]]},{"prompt":"q"},{"turns":["q"]}]',
    b'{"id":1,"instruction":"q","instances":[{"input":"","output":"a"}]}\n{"input_ids":[1,2],"labels":[-100,2]}\n',
    b'question,answer\n"q\n","a"\n',
)
_FOLDER = Path("build") / "fuzz"
"""Inputs that reached new code stay here, and the next run starts from them."""


def one_input(data: bytes) -> None:
    """Four bytes choose name, packing, format and mapping; the rest is the file."""
    choice, content = data[:4].ljust(4, b"\0"), data[4:]
    path = _FOLDER / NAMES[choice[0] % len(NAMES)]
    path.write_bytes(_packed(content, choice[1] % 4))
    source = SourceFile(
        path=path, format=FORMATS[choice[2] % len(FORMATS)], mapping=MAPPINGS[choice[3] % len(MAPPINGS)]
    )
    try:
        for row in read_verdicts(look_at(source, RULES.limits), RULES):
            _check(row)
    except Refused:
        pass
    finally:
        path.unlink()


def _packed(content: bytes, kind: int) -> bytes:
    if kind == 1:
        return gzip.compress(content, 1)
    if kind == 2:
        return pa.Codec("zstd").compress(content, asbytes=True)
    return content


def _check(row: list[Candidate | RejectedRow]) -> None:
    assert row, "a row without a verdict"
    for verdict in row:
        if isinstance(verdict, Candidate):
            texts = [verdict.document or "", verdict.tools or "", *(m.content for m in verdict.messages)]
            "".join(texts).encode()
            assert verdict.messages or verdict.document or verdict.tokenised, "a candidate without content"


def main() -> None:
    corpus = _FOLDER / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS):
        (corpus / f"seed-{number}").write_bytes(b"\1\0\0\0" + seed)
    atheris.Setup([sys.argv[0], "-max_len=4096", f"-artifact_prefix={_FOLDER}/", str(corpus), *sys.argv[1:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
