"""Every file of a folder through `dflash ingest`: do accepted, rejected and duplicates add up to the rows it has?

The folder's README.md must hold a table with the columns `file` and `rows`. Run it by hand:
`python bench/data_totals.py --data FOLDER --tokenizer DIR [--tokenizer DIR]`. Exit code 1 if a total is another.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from dflash_pipeline.stages.ingest_files import IngestRequest, ingest_files

_ROW = re.compile(r"^\| (?P<file>\S+) \|(?:[^|]*\|){3} (?P<rows>\d+) \|", re.MULTILINE)


def stated_rows(folder: Path) -> dict[str, int]:
    """Rows by file name, from the fifth column of the README's first table."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows: dict[str, int] = {}
    for found in _ROW.finditer(text):
        rows.setdefault(found["file"], int(found["rows"]))  # later tables hold other numbers
    return rows


def ingested(folder: Path, names: list[str], tokenizer: Path) -> dict[str, object]:
    request = IngestRequest(
        sources=tuple(folder / name for name in names),
        tokenizer=tokenizer,
        chat_template=None,
        mapping={},
        format=None,
        supervise="all",
        max_length=8192,
        overlong="truncate",
        max_row_bytes=64 * 2**20,
    )
    with tempfile.TemporaryDirectory(prefix="dflash-totals-") as storage:
        return ingest_files(request, Path(storage), known={})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, action="append", required=True)
    arguments = parser.parse_args()
    stated = stated_rows(arguments.data)
    wrong = 0
    for tokenizer in arguments.tokenizer:
        found = ingested(arguments.data, list(stated), tokenizer)
        print(
            f"{tokenizer.name}: {found['num_samples']:,} samples, {found['num_tokens']:,} tokens, "
            f"{found['num_supervised_tokens']:,} supervised; {found['by_reason']}; dropped {found['dropped']}"
        )
        for file in found["files"]:  # type: ignore[attr-defined]
            name = Path(file["path"]).name
            total = file["accepted"] + file["rejected"] + file["exact_duplicates"]
            same = total == stated[name] and file["error"] is None
            wrong += not same
            print(
                f"  {'ok   ' if same else 'WRONG'} {name}: {file['accepted']} + {file['rejected']} + "
                f"{file['exact_duplicates']} = {total} of {stated[name]} {file['error'] or ''}"
            )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
