"""The code location: `dagster dev -w workspace.yaml`, with the recipe that `DFLASH_RECIPE` names."""

from dflash_pipeline.assets.catalogue import definitions_for
from dflash_pipeline.assets.resources import workbench_from_environment

defs = definitions_for(workbench_from_environment())
