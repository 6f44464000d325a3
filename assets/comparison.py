"""Group `evaluation`: is this run normal, and did what was changed help?"""

import dagster as dg
from pydantic import Field

from dflash_pipeline.assets.acceptance import acceptance_report
from dflash_pipeline.assets.metadata import count, numbers, table
from dflash_pipeline.assets.owners import EVALUATION
from dflash_pipeline.assets.plots import picture
from dflash_pipeline.assets.pools import NODE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.results import TrainedDrafter


class ComparisonChoices(dg.Config):
    """Which runs stand side by side."""

    runs: list[str] = Field(
        default=[],
        description="Names of folders in runs/. Empty: this run and the champion's, or else the recipe's run before.",
    )


@dg.asset(
    group_name="evaluation", kinds={"python"}, owners=EVALUATION, code_version="1", pool=NODE, deps=[acceptance_report]
)
def run_comparison(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    config: ComparisonChoices,
    trained_drafter: TrainedDrafter,
) -> dg.MaterializeResult:
    """This run's loss and acceptance over the champion's, what differs between the two, and the conversations that
    spikes are made of.

    Curves are against cost, so that runs with other plans lie on one axis. The page in reports/ has all of it.
    """
    from dflash_pipeline.stages import comparison_pictures as pictures
    from dflash_pipeline.stages.comparison import compare_runs, compare_with_champion
    from dflash_pipeline.stages.comparison_page import acceptance_sentences, summary_rows, write_page
    from dflash_pipeline.stages.data_versions import page_version
    from dflash_pipeline.stages.forensics import look_into
    from dflash_pipeline.stages.forensics_pages import events_markdown
    from dflash_pipeline.stages.run_files import read_run

    recipe, storage, own = workbench.recipe, workbench.storage, trained_drafter.run
    comparison = compare_runs(config.runs, storage) if config.runs else compare_with_champion(storage, recipe.name, own)
    page = storage.reports / f"comparison-{own}.html"
    workbench.storage.reports.mkdir(parents=True, exist_ok=True)
    write_page(comparison, page)
    mine = next((run for run in comparison.runs if run.name == own), comparison.runs[-1])
    verdict = "not known" if mine.verdict is None else mine.verdict.sentence
    names, differing = [run.name for run in comparison.runs], comparison.differences.items()
    context.log.info(f"comparison: {' against '.join(names)}; {verdict}")
    return dg.MaterializeResult(
        data_version=dg.DataVersion(page_version(page)),
        metadata={
            "runs": ", ".join(names),
            "verdict": verdict,
            "loss": picture("loss of the runs against cost", pictures.losses(comparison.runs, "cost")),
            "acceptance": picture("acceptance of the runs against cost", pictures.acceptances(comparison.runs, "cost")),
            "epochs": picture("speed and padding efficiency by epoch", pictures.epochs(comparison.runs)),
            "differing_settings": count(len(differing)),
            "differences": table(["setting", *names], [[name, *map(str, of.values())] for name, of in differing]),
            "summary": table(["figure", *names], summary_rows(comparison.runs)),
            "acceptance_difference": " ".join(acceptance_sentences(comparison.runs))
            or "not measured on the same prompts",
            "loss_events": count(len(mine.events)),
            "alarms": count(len(mine.alarms)),
            **numbers({"useful_tokens_per_second": mine.tokens_per_second}),
            "samples_of_loss_events": dg.MetadataValue.md(
                events_markdown(mine.name, look_into(storage, read_run(storage, mine.name)))
            ),
            "page": dg.MetadataValue.path(str(page)),
        },
    )
