"""What tells one run from another beside its settings: code, versions and machine; as parameters for trackers.

Their names have a dot, so that they are told from settings.
"""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from dflash_pipeline.training.settings import LaunchConfig
from dflash_pipeline.training.tracker import Params

PACKAGES = ("dflash-pipeline", "torch", "transformers", "numpy", "dagster", "mlflow")
GIT_SECONDS = 5.0
"""A work tree on a slow disk is not waited for any longer."""
CODE = Path(__file__).resolve().parent


def run_facts(config: LaunchConfig) -> Params:
    """About this process's code and machine. What can't be found out is left out."""
    found: dict[str, str | int | float | bool] = {
        **{f"version.{name}": text for name in PACKAGES if (text := _version(name))},
        **git_facts(CODE),
        "host.cores": os.cpu_count() or 0,
    }
    if config.recipe:
        found["recipe.digest"] = config.recipe
    if config.device == "cuda":
        found["host.gpu"] = torch.cuda.get_device_name()
        found["host.gpus"] = torch.cuda.device_count()
    return found


def more_settings(config: LaunchConfig) -> Params:
    """Settings that the other parameters leave out."""
    settings, drafter = config.settings, config.drafter
    return {
        "betas": ",".join(str(beta) for beta in settings.betas),
        "weight_decay": settings.weight_decay,
        "max_gradient_norm": settings.max_gradient_norm,
        "smoothing": settings.objective.smoothing,
        "features_kept": settings.features_kept,
        "drafter_seed": settings.seed,
        "warm_start": config.start_text,
        "intermediate_size": drafter.intermediate_size,
        "mask_token_id": drafter.mask_token_id,
        "drafter_sharding": config.sharding.drafter,
        "target_sharding": config.sharding.target,
        "compiled": config.execution.compiled,
        "recompute": config.execution.recompute,
        "device": config.device,
        "max_steps": config.max_steps or "none",
    }


def git_facts(folder: Path) -> dict[str, str | bool]:
    """Revision of the checkout that holds the folder, and whether files of it were changed; nothing outside of one."""
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return {}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"git.revision": revision} | ({} if changed is None else {"git.dirty": bool(changed)})


def _git(folder: Path, *arguments: str) -> str | None:
    """Its standard output; None when there is no git, no checkout, or no answer in time."""
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
