"""Group `data`: from source files to tokens."""

from collections.abc import Iterator

import dagster as dg

from dflash_pipeline.assets.inputs_tag import note_inputs
from dflash_pipeline.assets.metadata import count, share, table
from dflash_pipeline.assets.owners import DATA
from dflash_pipeline.assets.pools import WAREHOUSE
from dflash_pipeline.assets.preflight import PREFLIGHT, preflight_result
from dflash_pipeline.assets.resources import Workbench
from dflash_pipeline.contracts.conversation import Ingestion
from dflash_pipeline.contracts.corpus import CorpusSnapshot
from dflash_pipeline.contracts.results import AnswerSet

GROUP = "data"
MOST_LISTED = 500
"""Lines of a table on the page; a corpus may have ten thousand files."""
SAMPLE = 30


@dg.asset(group_name=GROUP, kinds={"duckdb"}, owners=DATA, code_version="1", pool=WAREHOUSE, check_specs=[PREFLIGHT])
def conversations(
    context: dg.AssetExecutionContext, workbench: dg.ResourceParam[Workbench]
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[Ingestion]]:
    """Conversations from the recipe's source files, parsed strictly into the warehouse.

    Every row is accepted, or rejected with file, line, byte offset and one named reason (table `rejected_rows`), or
    counted as an exact duplicate; the three add up. A part is held out by a hash of its first user message.
    """
    from dflash_pipeline.stages.conversations import make_conversations
    from dflash_pipeline.stages.preflight import look_over, refuse
    from dflash_pipeline.store.warehouse import Warehouse

    note_inputs(context, workbench)
    found = look_over(workbench.recipe, workbench.storage)
    yield preflight_result(found)
    refuse(found.faults, recipe_name=workbench.recipe.name)
    made = make_conversations(workbench.recipe, workbench.storage)
    ingestion = made.record
    warehouse = Warehouse(workbench.storage.warehouse)
    context.log.info(
        f"conversations: {ingestion.accepted:,} accepted, {ingestion.rejected:,} rejected, "
        f"{ingestion.exact_duplicates:,} exact duplicates{_again(made.reused)}"
    )
    yield dg.MaterializeResult(
        value=ingestion,
        data_version=dg.DataVersion(ingestion.fingerprint),
        metadata={
            "accepted_rows": count(ingestion.accepted),
            "rejected_rows": count(ingestion.rejected),
            "exact_duplicates": count(ingestion.exact_duplicates),
            "prompts_to_answer": count(ingestion.num_prompts),
            "training_conversations": count(ingestion.num_train),
            "validation_conversations": count(ingestion.num_validation),
            "reused": made.reused,
            "sources": table(
                ("file", "accepted", "rejected", "exact_duplicates", "error"),
                [
                    (s.file, s.accepted, s.rejected, s.exact_duplicates, s.error or "")
                    for s in ingestion.sources[:MOST_LISTED]
                ],
            ),
            "rejections_by_reason": table(("reason", "rows"), sorted(ingestion.by_reason.items())),
            "rejections_by_source": table(
                ("file", "reason", "rows"), warehouse.rejections(ingestion.fingerprint)[:MOST_LISTED]
            ),
            "rejected_sample": table(
                ("file", "line", "byte_offset", "id", "reason", "excerpt"),
                [
                    (r.file, r.line, r.byte_offset, r.conversation_id or "", r.reason, r.excerpt)
                    for r in warehouse.rejected_sample(ingestion.fingerprint, each=3, most=SAMPLE)
                ],
            ),
        },
    )


@dg.asset(group_name=GROUP, kinds={"pytorch", "duckdb"}, owners=DATA, code_version="1", pool=WAREHOUSE)
def target_responses(
    context: dg.AssetExecutionContext, workbench: dg.ResourceParam[Workbench], conversations: Ingestion
) -> dg.MaterializeResult[AnswerSet]:
    """The target's own answers to every prompt, computed here or by a server, cached by prompt, target and settings.

    A drafter learns to predict the target, not the author of a data set: trained on other answers it drafts poorly.
    With `responses.enabled: false` the answers of the files stay.
    """
    from dflash_pipeline.stages.responses import make_responses

    made = make_responses(workbench.recipe, workbench.storage, conversations, tell=context.log.info)
    answers = made.record
    left_out = "".join(f", {count:,} left out as {reason}" for reason, count in answers.left_out)
    context.log.info(
        f"answers: {answers.num_answers:,} by the target, {answers.num_cut:,} cut{left_out}{_again(made.reused)}"
    )
    return dg.MaterializeResult(
        value=answers,
        data_version=dg.DataVersion(f"{conversations.fingerprint}-{answers.fingerprint}"),
        metadata={
            "answers": count(answers.num_answers),
            "cut_at_limit": count(answers.num_cut),
            "empty": count(answers.num_empty),
            "left_out_by_reason": table(("reason", "conversations"), answers.left_out),
            "written_by": "the files" if answers.fingerprint == "source" else "the target",
            "reused": made.reused,
        },
    )


@dg.asset(group_name=GROUP, kinds={"arrow", "huggingface"}, owners=DATA, code_version="1", pool=WAREHOUSE)
def token_sequences(
    context: dg.AssetExecutionContext,
    workbench: dg.ResourceParam[Workbench],
    conversations: Ingestion,
    target_responses: AnswerSet,
) -> dg.MaterializeResult[CorpusSnapshot]:
    """An immutable snapshot of token sequences and supervised spans, in memory-mapped Arrow.

    Rendered by the target's own chat template and tokenizer; assistant turns carry the loss.
    """
    from dflash_pipeline.stages.tokens import make_snapshot, num_conversations

    made = make_snapshot(workbench.recipe, workbench.storage, conversations, target_responses, tell=context.log.info)
    snapshot = made.record
    context.log.info(
        f"tokens: {snapshot.num_samples:,} samples, {snapshot.num_tokens:,} tokens, "
        f"{snapshot.num_supervised_tokens:,} supervised{_again(made.reused)}"
    )
    return dg.MaterializeResult(
        value=snapshot,
        data_version=dg.DataVersion(snapshot.fingerprint),
        metadata={
            "snapshot": snapshot.fingerprint,
            "conversations": count(num_conversations(workbench.storage, snapshot)),
            "dropped_by_reason": table(("reason", "conversations"), sorted(snapshot.dropped)),
            "thinking": snapshot.thinking,
            "training_samples": count(snapshot.num_train_samples),
            "validation_samples": count(snapshot.num_validation_samples),
            "tokens": count(snapshot.num_tokens),
            "supervised_tokens": count(snapshot.num_supervised_tokens),
            "supervised_share": share(snapshot.num_supervised_tokens / snapshot.num_tokens),
            "folder": dg.MetadataValue.path(str(workbench.storage.snapshots / snapshot.fingerprint)),
            "reused": made.reused,
        },
    )


def _again(reused: bool) -> str:
    return " (unchanged, reused)" if reused else ""
