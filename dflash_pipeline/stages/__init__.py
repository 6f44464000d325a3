"""One function a stage: from a recipe and what came before to a record of what was made. Dagster and the CLI call them.

A stage is idempotent: what it would make is named by fingerprint, so it reuses what exists whole, sets aside what is
damaged and makes only what is missing.
"""
