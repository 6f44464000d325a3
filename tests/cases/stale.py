"""Which of tokens and manifests a change makes anew: the real stages on real inputs, base and changes.

What a case names by a hash (`dataset_sha256` …) becomes a file whose content holds that text, so that another hash in
the case is another content. What the pipeline has no setting for (`log_level`, `mlflow_uri`) is set in the environment.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash_pipeline.recipe import Batching, Data, Recipe, Responses, Source, Target, Training
from dflash_pipeline.stages.batching import PlannedEpoch, make_boundaries, make_epochs, make_plan, make_statistics
from dflash_pipeline.stages.conversations import make_conversations
from dflash_pipeline.stages.responses import make_responses
from dflash_pipeline.stages.tokens import make_snapshot
from dflash_pipeline.store.layout import Storage
from tests.cases.chat import tokenizer_folder

FIXTURES = Path(__file__).parent / "fixtures"
ENVIRONMENT = {"log_level": "DFLASH_LOG_LEVEL", "mlflow_uri": "MLFLOW_TRACKING_URI"}
KNOWN = {
    *("dataset", "dataset_sha256", "template", "template_sha256", "tokenizer_sha256", "max_length"),
    *("seed", "budget", "world_size", *ENVIRONMENT),
}


def observe_changes(case: Mapping[str, Any]) -> dict[str, Any]:
    base = case["base"]
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        storage = Storage(root=Path(folder) / "storage")
        inputs = Path(folder)
        _stages(base, inputs, storage)
        same = _stages(base, inputs, storage)
        changes = [_changed(base, change, inputs, storage) for change in case["changes"]]
        slots = base.get("world_size", 1)
        ranks = [{"ranks": n} | _stages(base, inputs, storage, ranks=n) for n in range(1, slots + 1) if slots % n == 0]
    return {"unchanged": same, "changes": changes, "other_ranks_at_launch": ranks}


def _changed(base: Mapping[str, Any], change: Mapping[str, Any], inputs: Path, storage: Storage) -> dict[str, Any]:
    unknown = sorted(set(change) - KNOWN)
    if unknown:
        return {"change": change, "not_observed": f"this pipeline has no input that stands for {', '.join(unknown)}"}
    return {"change": change} | _stages({**base, **change}, inputs, storage)


def _stages(settings: Mapping[str, Any], inputs: Path, storage: Storage, *, ranks: int = 1) -> dict[str, Any]:
    recipe = _recipe(settings, inputs, ranks)
    planned: list[PlannedEpoch] = []
    with _environment({ENVIRONMENT[key]: str(settings[key]) for key in ENVIRONMENT if key in settings}):
        ingestion = make_conversations(recipe, storage)
        answers = make_responses(recipe, storage, ingestion.record)
        snapshot = make_snapshot(recipe, storage, ingestion.record, answers.record)
        statistics = make_statistics(storage, snapshot.record)
        boundaries = make_boundaries(recipe, storage, statistics)
        make_epochs(recipe, storage, snapshot.record, boundaries, [0, 1], tell=lambda made, manifest: planned.append(made))
        plan = make_plan(recipe, storage, snapshot.record, boundaries)
    return {
        "tokens": "reused" if snapshot.reused else "rebuilt",
        "manifests": "reused" if all(p.reused for p in planned) else "rebuilt",
        "snapshot": snapshot.record.fingerprint,
        "plan": plan.record.fingerprint,
    }


def _recipe(settings: Mapping[str, Any], inputs: Path, ranks: int) -> Recipe:
    return Recipe(
        name="cases",
        data=Data(
            sources=[Source(path=_dataset(settings, inputs))],
            validation_fraction=0.0,
            max_length=settings["max_length"],
        ),
        target=Target(path=_tokenizer(settings, inputs), chat_template=_template(settings, inputs)),
        responses=Responses(enabled=False),
        batching=Batching(
            token_budget=settings["budget"], slots_per_step=settings["world_size"], seed=settings["seed"], epochs=2
        ),
        training=Training(num_ranks=ranks),
    )


def _dataset(settings: Mapping[str, Any], inputs: Path) -> Path:
    path = inputs / f"{settings['dataset_sha256']}-{Path(settings['dataset']).name}"
    rows = [
        {"messages": [{"role": "user", "content": f"{settings['dataset_sha256']} {i}"}, _answer(i)]} for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _answer(number: int) -> dict[str, str]:
    return {"role": "assistant", "content": "word " * (number % 7 + 1)}


def _template(settings: Mapping[str, Any], inputs: Path) -> Path:
    path = inputs / f"{settings['template_sha256']}.jinja"
    text = (FIXTURES / "chatml.jinja").read_text(encoding="utf-8")
    path.write_text(f"{{#- {settings['template_sha256']} -#}}{text}", encoding="utf-8")
    return path


def _tokenizer(settings: Mapping[str, Any], inputs: Path) -> Path:
    folder = inputs / f"tokenizer-{settings['tokenizer_sha256']}"
    folder.mkdir(exist_ok=True)
    tokenizer_folder(FIXTURES / "toy_tokenizer.json", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    # Another indentation for another hash: other bytes, and still the same tokenizer to whoever reads it.
    indent = sum(settings["tokenizer_sha256"].encode()) % 97
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=indent), encoding="utf-8")
    return folder


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
