"""From the weights of a recipe's sources to those of the files that an ingestion has read."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_pipeline.contracts.conversation import Ingestion, SourceReport
from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.ingest.sources import SourceFile, expand, shown
from dflash_pipeline.recipe import Data
from dflash_pipeline.stages.conversations import source_files
from dflash_pipeline.store.files import file_sha256


def file_weights(data: Data, ingestion: Ingestion) -> tuple[float, ...]:
    """The weight of each file of the ingestion, in their order.

    The recipe is asked now, not when the files were read: weights are no part of an ingestion. Raises `Refused` when
    the recipe's sources are not those files any more, so that nothing tells which weight a file has.
    """
    weights = {source.weight for source in data.sources}
    if len(weights) == 1:
        return (weights.pop(),) * len(ingestion.sources)
    files = expand(source_files(data))
    reports = ingestion.sources
    if len(files) != len(reports) or not all(_is_that(*pair) for pair in zip(files, reports, strict=True)):
        raise Refused(
            "its files are not those that were ingested, so their weights are not known",
            where="data.sources",
            fix="run ingestion again (`conversations` on the Dagster page)",
        )
    _refuse_two_weights(files, reports)
    first = {report.file: file.weight for file, report in reversed(list(zip(files, reports, strict=True)))}
    return tuple(first[report.file] for report in reports)


def _is_that(file: SourceFile, report: SourceReport) -> bool:
    """By name, or by content: an ingestion is found by content, and names its files as they were called then."""
    if shown(file.path) == report.file or report.error is not None:
        return True
    try:
        return file_sha256(file.path) == report.sha256
    except OSError:
        return False


def _refuse_two_weights(files: Sequence[SourceFile], reports: Sequence[SourceReport]) -> None:
    """A file that two sources name counts with the first: what the second reads of it are exact duplicates.

    Read in two ways, it gives conversations to both, and they are told apart by their file alone.
    """
    firsts: dict[str, SourceFile] = {}
    for file, report in zip(files, reports, strict=True):
        first = firsts.setdefault(report.file, file)
        same = (first.mapping, first.format) == (file.mapping, file.format)
        if first.weight != file.weight and not same:
            raise Refused(
                f"two sources read {report.file} in different ways, with weights {first.weight:g} and {file.weight:g}",
                where="data.sources",
                fix="give them one weight",
            )
