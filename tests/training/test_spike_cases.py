import json
from pathlib import Path

from dflash_pipeline.training.spikes import judge, no_history

CASES = Path(__file__).parents[1] / "cases"


def flagged(name: str) -> list[tuple[int, float]]:
    case = json.loads((CASES / name).read_text())
    losses = [float(loss) for loss in case["loss"]]
    buckets = case.get("bucket") or [0] * len(losses)
    state = no_history(max(buckets) + 1)
    found = []
    for step, (loss, bucket) in enumerate(zip(losses, buckets, strict=True)):
        verdict, state = judge(state, loss=loss, bucket=bucket)
        if verdict.spike:
            found.append((step, loss))
    return found


def test_the_two_spikes_of_the_history():
    assert [step for step, _ in flagged("tr_history_spikes.json")] == [254, 258]
    assert max(flagged("tr_history_spikes.json"), key=lambda spike: spike[1]) == (258, 6.4)


def test_the_quiet_run_has_none():
    assert len(json.loads((CASES / "tr_quiet_run.json").read_text())["loss"]) > 1000
    assert flagged("tr_quiet_run.json") == []
