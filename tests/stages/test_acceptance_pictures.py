"""A picture is drawn from the reports, and is theirs."""

import base64

from dflash_pipeline.evaluation.acceptance import PromptAcceptance, combine_results
from dflash_pipeline.stages.acceptance_pictures import acceptance_picture, acceptance_png


def report(*histogram: int):
    tokens = 1 + sum(length * rounds for length, rounds in enumerate(histogram, start=1))
    return combine_results(
        [
            PromptAcceptance(
                source="",
                prompt="",
                prompt_tokens=1,
                num_tokens=tokens,
                histogram=histogram,
                cut_tokens=0,
                lossless=True,
            )
        ]
    )


def test_a_picture_is_a_png_that_tells_reports_apart():
    png = acceptance_png(report(5, 0, 0), report(1, 2, 3))
    assert png.startswith(b"\x89PNG")
    assert png != acceptance_png(report(5, 0, 0), report(1, 3, 2))
    kind, _, data = acceptance_picture(report(5, 0, 0), report(1, 2, 3)).partition(",")
    assert (kind, base64.b64decode(data)) == ("data:image/png;base64", png)
