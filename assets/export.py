"""Group `evaluation`: the drafter in the formats that servers read."""

import dagster as dg

from dflash_pipeline.assets.metadata import count
from dflash_pipeline.assets.owners import EVALUATION
from dflash_pipeline.assets.pools import WAREHOUSE
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.plan import RunPlan
from dflash_pipeline.contracts.results import ExportedDrafter, TrainedDrafter


@dg.asset(group_name="evaluation", kinds={"huggingface"}, owners=EVALUATION, code_version="1", pool=WAREHOUSE)
def exported_drafter(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    token_sequences: CorpusSnapshot,
    run_plan: RunPlan,
    trained_drafter: TrainedDrafter,
) -> dg.MaterializeResult[ExportedDrafter]:
    """The drafter in z-lab's format, as SGLang and vLLM read it, with tokenizer and model card."""
    from dflash_pipeline.stages.data_versions import export_version
    from dflash_pipeline.stages.export import make_export

    made = make_export(workbench.recipe, workbench.storage, token_sequences, run_plan, trained_drafter)
    context.log.info(f"export: {made.record.export_dir}{' (unchanged, reused)' if made.reused else ''}")
    return dg.MaterializeResult(
        value=made.record,
        data_version=dg.DataVersion(export_version(made.record)),
        metadata={
            "folder": dg.MetadataValue.path(made.record.export_dir),
            "tensors": count(made.record.num_tensors),
            "reused": made.reused,
        },
    )
