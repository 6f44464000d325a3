"""`dflash export`: any run's newest checkpoint as a folder of its own, and the proof that it is what it says."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.carried import CARRIED, carries
from dflash_pipeline.evaluation.export import CARD, WEIGHTS
from dflash_pipeline.evaluation.verify import verify_export
from dflash_pipeline.model.target_files import check_target_folder
from dflash_pipeline.recipe import Export
from dflash_pipeline.stages.export import RunWeights, export_name, run_weights, write_export
from dflash_pipeline.stages.model_card import acceptance_section, with_section
from dflash_pipeline.stages.run_result import run_result
from dflash_pipeline.store.files import file_sha256, folder_faults
from dflash_pipeline.store.folder_files import put_into_folder
from dflash_pipeline.store.layout import Storage, open_storage
from dflash_pipeline.store.plans import load_plan
from dflash_pipeline.store.records import load_record
from dflash_pipeline.training.checkpoint import CheckpointState
from dflash_pipeline.training.settings import LaunchConfig

Form = Literal["zlab", "speculators"]


def export_run(
    run: str, storage_dir: Path, out: Path, *, form: Form, labels: Export, target: Path | None
) -> dict[str, Any]:
    """What was written, and what a verification says of it. `out` must not exist."""
    storage = open_storage(storage_dir)
    run_dir = storage.runs / run
    if "/" in run or not (run_dir / "launch.json").exists():
        raise Refused(
            "there is no such run", where=str(run_dir), fix="name a folder of runs/, for example as `ls` shows it"
        )
    if out.exists():
        raise Refused("something is there already", where=str(out), fix="give a folder that does not exist")
    launch = load_record(run_dir / "launch.json", LaunchConfig)
    target_dir = Path(launch.target_dir) if target is None else target
    check_target_folder(target_dir)
    weights = _weights(launch, run_dir, target_dir, labels)
    write_export(weights, out, speculators=form == "speculators")
    _carry_what_is_known(storage, weights, out)
    checks = verify_export(out, target_dir)
    trained = weights.card.trained
    return {
        "run": run,
        "format": form,
        "out": str(out),
        "num_tensors": len(weights.tensors),
        "steps_done": trained.steps_done,
        "total_steps": trained.total_steps,
        "ok": all(check.ok for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def _weights(launch: LaunchConfig, run_dir: Path, target_dir: Path, labels: Export) -> RunWeights:
    # A copied or moved storage: what lies in it counts, not where it lay when the run was started.
    trained = run_result(launch, run_dir)
    state = load_record(Path(trained.checkpoint) / "state.json", CheckpointState)
    trained = replace(trained, run_dir=str(run_dir), steps_done=state.global_step)
    return run_weights(
        target_dir,
        labels,
        snapshot=load_record(Path(launch.snapshot_dir) / "snapshot.json", CorpusSnapshot),
        plan=load_plan(Path(launch.plan_dir), launch.plan),
        trained=trained,
    )


def _carry_what_is_known(storage: Storage, weights: RunWeights, out: Path) -> None:
    """The report of the same weights, if the pipeline's own export carries one."""
    known = storage.exports / export_name(weights.card.trained)
    if not carries(known) or folder_faults(known) or file_sha256(known / WEIGHTS) != file_sha256(out / WEIGHTS):
        return
    section = acceptance_section((known / CARD).read_text(encoding="utf-8"))
    card = with_section((out / CARD).read_text(encoding="utf-8"), section)
    put_into_folder(out, {CARD: card, CARRIED: (known / CARRIED).read_text(encoding="utf-8")})
