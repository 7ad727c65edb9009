"""The question of a comparison, and its checks against the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calibration_records._check import confidence_level, integer, known, one_of, positive, refused
from calibration_records.runs.metric_names import DIRECTIONS, direction_of, main_metric
from calibration_records.runs.run_record import RunRecord

MAX_LOOKS = 50
# Error rate of training "about k more seeds each" and looking again until the verdict is final:
# 4 to 5 % with the level of three looks, 6 to 7 % with the level of two and 10 to 12 % with the
# level of one (benchmarks/compare_decisions.py).
ADVISED, NUM_ADVISED_LOOKS = "advised", 3


class Question(NamedTuple):
    """Two pipelines and the options of `compare`."""

    a: str
    b: str
    metric: str = "calibrated_log_loss"
    epoch: int | str = "kept"
    delta: float | None = None
    confidence: float = 0.95
    num_looks: int | str | None = ADVISED
    directions: Mapping[str, str] | None = None

    @property
    def planned_looks(self) -> int | None:
        """The number of looks that share the risk; None for any number."""
        looks = NUM_ADVISED_LOOKS if self.num_looks == ADVISED else self.num_looks
        return None if looks is None else int(looks)


def check_question(question: Question) -> None:
    """Refuses invalid arguments."""
    confidence_level("confidence", question.confidence)
    if question.a == question.b:
        raise refused("b", "another pipeline than `a`", question.b)
    if question.epoch not in ("kept", "last", "best"):
        integer("epoch", question.epoch, 0, "Or pass 'kept', 'last' or 'best'.")
    if question.delta is not None:
        positive("delta", question.delta, also=", in the unit of the metric, or None")
    if question.num_looks not in (None, ADVISED, *range(1, MAX_LOOKS + 1)):
        raise refused(
            "num_looks",
            f"{ADVISED!r}, between 1 and {MAX_LOOKS}, or None for any number of looks",
            question.num_looks,
        )
    for direction in (question.directions or {}).values():
        one_of("directions", direction, DIRECTIONS)


def recorded_metrics(records: Sequence[RunRecord], question: Question) -> list[str]:
    """The metrics of the runs of either pipeline."""
    pipelines = sorted({record["pipeline"] for record in records})
    both = (question.a, question.b)
    known(
        "Arguments `a` and `b` must be pipelines of the ledger",
        both,
        pipelines,
        "" if pipelines else "It has no runs: check its path.",
    )
    compared = [record for record in records if record["pipeline"] in both]
    return list(dict.fromkeys(name for record in compared for name in record["metrics"]))


def metric_directions(
    records: Sequence[RunRecord], question: Question, names: Sequence[str]
) -> dict[str, str | None]:
    """The direction of each metric: as passed, as recorded, or inferred from its name."""
    passed = question.directions or {}
    # A name without `val_` means the held-out values; the full name wins over it.
    resolved = {resolve_metric(name, names): direction for name, direction in passed.items()}
    resolved |= {name: direction for name, direction in passed.items() if name in names}
    recorded = [
        record["directions"] for record in records if record["pipeline"] in (question.a, question.b)
    ]
    candidates = {
        name: {ways[name] for ways in recorded if name in ways} or {direction_of(name)}
        for name in names
    }
    # If records contradict each other, the direction is unknown.
    unique = {name: ways.pop() for name, ways in candidates.items() if len(ways) == 1}
    return {name: resolved.get(name) or unique.get(name) for name in names}


def deciding_direction(metric: str, directions: Mapping[str, str | None]) -> str:
    """The direction of the deciding metric, which must be known."""
    direction = directions[metric]
    if direction is None:
        raise refused(
            "metric",
            "of known direction",
            metric,
            f"Pass directions={{{metric!r}: 'max'}} or 'min'; on the command line, --maximize "
            f"{metric} or --minimize {metric}.",
        )
    return direction


def resolve_metric(metric: str, names: Sequence[str]) -> str:
    """The name of a metric in the ledger, preferably of its held-out values."""
    # Held-out values answer the question better, so they come first.
    for candidate in (f"val_{metric}", metric):
        if candidate in names:
            return candidate
    shown = main_metric(names) or next(iter(names), None)
    remedy = f"Pass metric={shown!r}, for example." if shown else ""
    known("Argument `metric` must be recorded for both pipelines", [metric], names, remedy)
    return metric
