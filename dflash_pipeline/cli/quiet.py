"""Keeps libraries from talking over a command's own answer."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_libraries() -> None:
    """Fewer lines on a terminal: beta notices and database set-up are not the user's business."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("ignore", message=".*is currently in (beta|preview).*")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
