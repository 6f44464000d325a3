"""Manifests as SQL: views over their Parquet files, where they lie. Nothing is copied into the database.

    micro_batches(plan_folder, epoch, step, slot, filler, padded_length, num_tokens, supervised_tokens, cost,
                  sample_ids)
    scheduled_samples(plan_folder, epoch, step, slot, filler, sample_id)

`plan_folder` is `folder` of the table `plans`.
"""

from __future__ import annotations

from pathlib import Path


def manifest_views(plans: Path) -> tuple[str, ...]:
    """Statements that make the views, none while there is no manifest. Made anew, they follow a moved storage."""
    if not any(plans.glob("*/epoch-*.parquet")):
        return ()
    # A view takes no parameters, so the path is quoted by hand.
    pattern = str(plans.resolve() / "*" / "epoch-*.parquet").replace("'", "''")
    return (
        f"""CREATE OR REPLACE VIEW micro_batches AS
            SELECT parse_path(filename)[-2] AS plan_folder, * EXCLUDE (filename)
            FROM read_parquet('{pattern}', filename = true)""",
        """CREATE OR REPLACE VIEW scheduled_samples AS
            SELECT plan_folder, epoch, step, slot, filler, unnest(sample_ids) AS sample_id FROM micro_batches""",
    )
