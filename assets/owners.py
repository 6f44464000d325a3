"""Who answers for an asset: one team a group. A checkout of several people puts their own names here."""

from __future__ import annotations

DATA = ["team:data"]
BATCHING = ["team:batching"]
TRAINING = ["team:training"]
EVALUATION = ["team:evaluation"]
