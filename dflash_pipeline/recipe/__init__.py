"""Everything a user may set, from one YAML file. Paths are relative to the recipe's own folder."""

from dflash_pipeline.recipe.batching import MAX_EPOCHS, Batching
from dflash_pipeline.recipe.data import Data, Format, Mapped, Source, Target
from dflash_pipeline.recipe.early import Early
from dflash_pipeline.recipe.evaluation import Evaluation
from dflash_pipeline.recipe.loading import load_recipe
from dflash_pipeline.recipe.promotion import Export, Promotion
from dflash_pipeline.recipe.responses import Endpoint, Responses
from dflash_pipeline.recipe.schedule import Schedule
from dflash_pipeline.recipe.section import Section
from dflash_pipeline.recipe.tracking import Tracking
from dflash_pipeline.recipe.training import Drafter, Training
from dflash_pipeline.recipe.whole import Recipe

__all__ = [
    "MAX_EPOCHS",
    "Batching",
    "Data",
    "Drafter",
    "Early",
    "Endpoint",
    "Evaluation",
    "Export",
    "Format",
    "Mapped",
    "Promotion",
    "Recipe",
    "Responses",
    "Schedule",
    "Section",
    "Source",
    "Target",
    "Tracking",
    "Training",
    "load_recipe",
]
