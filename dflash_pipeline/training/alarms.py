"""Alarms: what a person should look at, each once for its cause. A pure function over a run's records.

    watch(state, record, facts) -> (alarms, state)

A cause is raised when it is first seen, told then, and not again until it was gone for a while. The state is a function
of the records alone, so a resumed run has it from its event log (`state_after`), and repeats no alarm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dflash_pipeline.contracts.events import AcceptanceRecord, AlarmKind, AlarmRecord, Record, SpikeRecord, StepRecord
from dflash_pipeline.training.loss_level import LossLevel, with_loss
from dflash_pipeline.training.spike_events import LONGEST_SPIKE_STEPS, SAME_EVENT_STEPS

WAIT_STEPS = 50
"""Steps over which waiting for data is added up."""
FEWEST_WAIT_STEPS = 20
MOST_WAIT, CALM_WAIT = 0.2, 0.1
"""Shares of the time: above the first the loader is a cause, below the second it is none any more."""
DIVERGED, CALM = math.log(1.5), math.log(1.25)
"""How far the log loss is above its best, over all buckets: likewise."""
LEAST_DRAFTED = 0.2
"""Drafted tokens a round that training must expect before decoding can fall short of it."""
FAR_BELOW, NOT_FAR_BELOW = 0.5, 0.7
"""Of the drafted tokens a round that training expects. Decoding has other prompts and its own text before it, which
takes some; features read one place off, a wrong mask or another chat template take most."""
ROOM = 1.5
"""Free bytes over those of a checkpoint at which a disk is not full any more."""
CALM_STEPS: Mapping[AlarmKind, int] = {
    "spike": SAME_EVENT_STEPS,
    "divergence": LONGEST_SPIKE_STEPS,
    "non-finite": SAME_EVENT_STEPS,
    "no anchors": 100,
    "loader starving": 0,
    "disk low": 0,
    "acceptance gap": 0,
}
"""Steps without its cause after which an alarm may be told again. 0: its lower limit alone decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a record does not know; None for what was not looked at."""

    free_bytes: int | None = None
    """On the file system of the checkpoints."""
    checkpoint_bytes: int | None = None
    """Of one more checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlarmState:
    """Which causes are there, since when they were last seen, and what the rules remember."""

    last_seen: tuple[tuple[AlarmKind, int], ...] = ()
    """Raised causes, with the global step at which each was seen last."""
    waits: tuple[tuple[float, float], ...] = ()
    """Of the last steps: seconds waited for data, and seconds altogether."""
    level: LossLevel = field(default_factory=LossLevel)
    at: StepRecord | None = None
    """The last step."""

    def raised(self, kind: AlarmKind) -> bool:
        return any(name == kind for name, _ in self.last_seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Finding:
    """One rule's word on one record."""

    kind: AlarmKind
    there: bool
    """The cause is seen now."""
    gone: bool
    """It certainly is not; between the two, things stay as they are."""
    value: float
    limit: float
    message: str


NO_FACTS = Facts()


def watch(state: AlarmState, record: Record, facts: Facts = NO_FACTS) -> tuple[tuple[AlarmRecord, ...], AlarmState]:
    """The alarms that this record gives cause for, and the state after it."""
    match record:
        case StepRecord():
            waits = (*state.waits, (record.data_wait_seconds, record.seconds))[-WAIT_STEPS:]
            state = replace(state, waits=waits, level=with_loss(state.level, record), at=record)
            findings = [_nonfinite(record), _no_anchors(record), _starving(waits), _diverged(state.level)]
            findings += _disk(facts)
        case SpikeRecord():
            findings = [_spike(record)]
        case AcceptanceRecord():
            findings = _gap(record)
        case AlarmRecord():
            # Told by an earlier attempt: as good as seen.
            return (), _seen(state, record.cause, record.global_step)
        case _:
            return (), state
    return _judged(state, findings, step=record.global_step, place=_place(state, record))


def state_after(records: Iterable[Record]) -> AlarmState:
    """The state at the end of an event log: of `last_attempt_records`, in their order."""
    state = AlarmState()
    for record in records:
        _, state = watch(state, record)
    return state


def _judged(
    state: AlarmState, findings: Iterable[_Finding], *, step: int, place: tuple[int, int]
) -> tuple[tuple[AlarmRecord, ...], AlarmState]:
    alarms: list[AlarmRecord] = []
    epoch, step_of_epoch = place
    for finding in findings:
        if finding.there:
            if not state.raised(finding.kind):
                alarms.append(
                    AlarmRecord(
                        global_step=step,
                        epoch=epoch,
                        step=step_of_epoch,
                        cause=finding.kind,
                        message=finding.message,
                        value=finding.value,
                        limit=finding.limit,
                    )
                )
            state = _seen(state, finding.kind, step)
        elif finding.gone:
            state = _calmed(state, finding.kind, step)
    # A spike is told by a record of its own, so steps without one have to end it.
    return tuple(alarms), _calmed(state, "spike", step)


def _seen(state: AlarmState, kind: AlarmKind, step: int) -> AlarmState:
    return replace(state, last_seen=(*(seen for seen in state.last_seen if seen[0] != kind), (kind, step)))


def _calmed(state: AlarmState, kind: AlarmKind, step: int) -> AlarmState:
    """Without the cause, if it was last seen long enough ago."""
    kept = tuple(seen for seen in state.last_seen if seen[0] != kind or step - seen[1] <= CALM_STEPS[kind])
    return state if len(kept) == len(state.last_seen) else replace(state, last_seen=kept)


def _place(state: AlarmState, record: StepRecord | SpikeRecord | AcceptanceRecord) -> tuple[int, int]:
    """Epoch and step of it; of an acceptance, those of the last step."""
    if isinstance(record, AcceptanceRecord):
        return (0, 0) if state.at is None else (state.at.epoch, state.at.step)
    return record.epoch, record.step


def _spike(record: SpikeRecord) -> _Finding:
    rise = "the loss rises little by little and" if record.rule == "slow rise" else "the loss"
    return _Finding(
        kind="spike",
        there=True,
        gone=False,
        value=record.loss,
        limit=record.expected_loss,
        message=f"{rise} is {record.loss:.4g} where {record.expected_loss:.4g} is usual in bucket {record.bucket}; "
        "`dflash spikes RUN --full` shows the samples of the step",
    )


def _nonfinite(record: StepRecord) -> _Finding:
    there = not (math.isfinite(record.loss) and math.isfinite(record.gradient_norm))
    return _Finding(
        kind="non-finite",
        there=there,
        gone=not there,
        value=record.loss if not math.isfinite(record.loss) else record.gradient_norm,
        limit=math.inf,
        message=f"loss {record.loss:.4g}, gradient norm {record.gradient_norm:.4g}: the step changed no weight; if it "
        "goes on, lower training.learning_rate or take out the samples of the step",
    )


def _no_anchors(record: StepRecord) -> _Finding:
    there = record.num_anchors < record.num_samples
    return _Finding(
        kind="no anchors",
        there=there,
        gone=not there,
        value=record.num_anchors,
        limit=record.num_samples,
        message=f"{record.num_anchors} blocks are trained for {record.num_samples} samples: some samples train "
        "nothing; see with `dflash show-sample` what of them is supervised",
    )


def _starving(waits: tuple[tuple[float, float], ...]) -> _Finding:
    seconds = sum(whole for _, whole in waits)
    share = sum(wait for wait, _ in waits) / seconds if seconds > 0 else 0.0
    return _Finding(
        kind="loader starving",
        there=len(waits) >= FEWEST_WAIT_STEPS and share > MOST_WAIT,
        gone=share < CALM_WAIT,
        value=share,
        limit=MOST_WAIT,
        message=f"ranks stood waiting for data {share:.0%} of the last {len(waits)} steps; look for a slow or busy "
        "disk and for other programs on these cores",
    )


def _diverged(level: LossLevel) -> _Finding:
    factor = math.exp(level.above_best)
    return _Finding(
        kind="divergence",
        there=level.steps_above(DIVERGED) > LONGEST_SPIKE_STEPS,
        gone=level.above_best < CALM,
        value=factor,
        limit=math.exp(DIVERGED),
        message=f"for more than {LONGEST_SPIKE_STEPS} steps the smoothed loss is {factor:.2g} times its best: a new "
        "level or a divergence; stop, and start another run with a lower training.learning_rate",
    )


def _disk(facts: Facts) -> list[_Finding]:
    free, needed = facts.free_bytes, facts.checkpoint_bytes
    if free is None or needed is None:
        return []
    return [
        _Finding(
            kind="disk low",
            there=free < needed,
            gone=free > ROOM * needed,
            value=free,
            limit=needed,
            message=f"{free / 2**30:.2f} GiB are free and a checkpoint takes {needed / 2**30:.2f} GiB: free space "
            "before the next one, or the run ends there",
        )
    ]


def _gap(record: AcceptanceRecord) -> list[_Finding]:
    expected = record.expected_acceptance - 1
    if not expected >= LEAST_DRAFTED:
        return []
    # The upper end of the interval: few prompts alone are no cause.
    return [
        _Finding(
            kind="acceptance gap",
            there=record.high - 1 < FAR_BELOW * expected,
            gone=record.mean - 1 > NOT_FAR_BELOW * expected,
            value=record.mean,
            limit=1 + FAR_BELOW * expected,
            message=f"acceptance length {record.mean:.2f} (95 % up to {record.high:.2f}) where training expects "
            f"{record.expected_acceptance:.2f}: check that prompts use the template of the training text, and that "
            "the training answers are the target's own",
        )
    ]
