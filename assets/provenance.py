"""What Dagster writes on a materialisation to tell later whether it is stale, for those that we log ourselves."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)


def provenance_tags(
    instance: dg.DagsterInstance, *, data_version: str, code_version: str, inputs: Sequence[dg.AssetKey]
) -> dict[str, str]:
    """Version of data and code, and of each input its newest materialisation, as Dagster's own events have them."""
    tags = {
        DATA_VERSION_TAG: data_version,
        DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
        CODE_VERSION_TAG: code_version,
    }
    for key in inputs:
        for record in instance.fetch_materializations(key, limit=1).records:
            made = record.asset_materialization
            if made is not None and made.tags and DATA_VERSION_TAG in made.tags:
                tags[get_input_data_version_tag(key)] = made.tags[DATA_VERSION_TAG]
                tags[get_input_event_pointer_tag(key)] = str(record.storage_id)
    return tags
