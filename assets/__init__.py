"""Dagster only here: what each stage is called on the page, what it depends on, and what a person sees of it.

The work itself is in `dflash_pipeline.stages`: an asset is one call of a stage, plus metadata.
"""
