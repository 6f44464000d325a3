"""All that tells two runs apart, as flat names and texts: settings, plan, data, machine and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dflash_pipeline.stages.run_files import RunFiles
from dflash_pipeline.training.event_log import read_events

_NOT_SETTINGS = frozenset(
    {
        *("run", "run_dir", "plan_dir", "snapshot_dir", "shards", "features_dir", "target_dir", "tracking_uri"),
        *("artifact_location", "show_progress", "experiment", "plan", "target"),
        *("wanted_start", "warm_start"),
    }
)
"""Of `launch.json`: names and places."""


def run_settings(run: RunFiles) -> dict[str, str]:
    """By dotted name, in order; what the folder no longer tells is missing."""
    launch = {} if run.launch is None else asdict(run.launch)
    found = flat({name: value for name, value in launch.items() if name not in _NOT_SETTINGS})
    if run.plan is not None:
        found |= flat({"batching": asdict(run.plan.spec)})
        found |= {"data.snapshot": run.plan.snapshot, "batching.epochs": str(run.plan.num_epochs)}
    if run.launch is not None:
        found |= {"recipe": run.launch.experiment, "target": run.launch.target, "plan": run.launch.plan}
        found["warm_start"] = run.launch.start_text
    if run.record is not None and run.record.attempts:
        found["num_ranks"] = str(run.record.attempts[-1].num_ranks)
    return found | {name: text for name, text in _told(run).items() if "." in name and name not in found}


def differing(settings: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str | None]]:
    """By setting, what each run has, where they are not all the same; None where a run does not tell."""
    names = dict.fromkeys(name for of_run in settings.values() for name in of_run)
    found = {name: {run: of_run.get(name) for run, of_run in settings.items()} for name in names}
    return {name: values for name, values in found.items() if len(set(values.values())) > 1}


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted names; lists and the rest as text."""
    if isinstance(value, Mapping):
        return {
            name: text
            for key, item in value.items()
            for name, text in flat(item, f"{prefix}.{key}" if prefix else str(key)).items()
        }
    if isinstance(value, list | tuple):
        return {prefix: ", ".join(str(item) for item in value)}
    return {prefix: str(value)}


def _told(run: RunFiles) -> dict[str, str]:
    """What the last attempt told its trackers; names with a dot are facts about code and machine."""
    starts = [event["params"] for event in read_events(run.folder / "events.jsonl") if event["kind"] == "start"]
    return {name: str(value) for name, value in starts[-1].items()} if starts else {}
