"""`python -m tests.cases DIR --json`: one JSON document, case file to observed facts."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from dflash_pipeline.contracts.errors import DflashError
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT
from tests.cases import batching, chat, ingestion, progress, resume, scheduling, tracking

Facts = dict[str, Any]
OBSERVERS: Mapping[str, Callable[[Path], Facts]] = {
    "in": ingestion.observe,
    "ch": chat.observe,
    "bt": batching.observe,
    "pr": progress.observe,
    "rs": resume.observe,
    "tr": tracking.observe,
    "or": scheduling.observe,
}
LONG = "or_cancel"
"""Starts real runs with many ranks."""
LEFT_OUT: Facts = {"not_observed": "it takes minutes: leave --quick away"}
SUFFIXES = {"in": (".jsonl", ".ndjson", ".json", ".py")}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cases", description=__doc__)
    parser.add_argument("folder", type=Path, help="A folder of case files.")
    parser.add_argument("--json", action="store_true", help="Print JSON (the only form there is).")
    parser.add_argument("--only", default="", help="Only cases whose file name starts with this.")
    parser.add_argument("--quick", action="store_true", help="Leave out what takes minutes, and say so.")
    chosen = parser.parse_args(arguments)
    if not chosen.folder.is_dir():
        parser.error(f"{chosen.folder} is not a folder")
    with redirect_stdout(sys.stderr):
        observed = observe_folder(chosen.folder.resolve(), only=chosen.only, quick=chosen.quick)
    print(json.dumps(_finite(observed), ensure_ascii=False, indent=1, allow_nan=False))
    return 0


def observe_folder(folder: Path, *, only: str = "", quick: bool = False) -> dict[str, Facts]:
    """Facts of every case in the folder, by file name; what is no case is passed over."""
    cases = [path for path in sorted(folder.iterdir()) if is_case(path) and path.name.startswith(only)]
    return {path.name: LEFT_OUT if quick and path.name.startswith(LONG) else _timed(path) for path in cases}


def is_case(path: Path) -> bool:
    prefix = path.name.partition("_")[0]
    if prefix not in OBSERVERS:
        return False
    return path.is_dir() if not path.suffix else path.suffix in SUFFIXES.get(prefix, (".json",))


def _timed(path: Path) -> Facts:
    began = time.monotonic()
    facts = observe(path)
    print(f"{path.name}: {time.monotonic() - began:.1f} s", flush=True)
    return facts


def observe(path: Path) -> Facts:
    try:
        return OBSERVERS[path.name.partition("_")[0]](path)
    except DflashError as error:
        return {"refused": str(error), "error": error.as_json()}
    except Exception as error:
        # One case that breaks the pipeline is an observation too, and must not cost the others.
        traceback.print_exc()
        return {"crashed": f"{type(error).__name__}: {error}"}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


if __name__ == "__main__":
    os.environ.update(CLIENT_ENVIRONMENT)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore")
    for noisy in ("alembic", "mlflow"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.exit(main(sys.argv[1:]))
