"""The question of a comparison, and its checks against the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calibration_records._check import (
    confidence_level,
    instance,
    integer,
    known,
    one_of,
    positive,
    refused,
)
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
        return NUM_ADVISED_LOOKS if isinstance(self.num_looks, str) else self.num_looks


def check_question(question: Question) -> Question:
    """The question in Python's own values, such as JSON has; refuses invalid arguments.

    Example:
        >>> import numpy as np
        >>> check_question(Question("deepfm", "dcn", epoch=np.int64(3))).epoch
        3
    """
    for name in ("a", "b", "metric"):
        instance(name, getattr(question, name), str, "a name, as in the ledger")
    if question.a == question.b:
        raise refused("b", "another pipeline than `a`", question.b)
    confidence_level("confidence", question.confidence)
    epoch, delta, looks = question.epoch, question.delta, question.num_looks
    if not isinstance(epoch, str) or epoch not in ("kept", "last", "best"):
        epoch = integer("epoch", epoch, 0, "Or pass 'kept', 'last' or 'best'.")
    if delta is not None:
        positive("delta", delta, also=", in the unit of the metric, or None")
    if not isinstance(looks, str | None):
        looks = integer("num_looks", looks, 1, f"Or pass {ADVISED!r}, or None for any number.")
    if looks not in (None, ADVISED, *range(1, MAX_LOOKS + 1)):
        raise refused(
            "num_looks",
            f"{ADVISED!r}, between 1 and {MAX_LOOKS}, or None for any number of looks",
            looks,
        )
    instance(
        "directions",
        question.directions,
        Mapping | None,  # type: ignore[arg-type]
        "a dict from a metric's name to 'min' or 'max', or None",
    )
    for direction in (question.directions or {}).values():
        one_of("directions", direction, DIRECTIONS)
    return question._replace(
        epoch=epoch,
        delta=None if delta is None else float(delta),
        confidence=float(question.confidence),
        num_looks=looks,
        directions=dict(question.directions or {}) or None,
    )


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
    records: Sequence[RunRecord], question: Question, names: Sequence[str], deciding: str
) -> dict[str, str | None]:
    """The direction of each metric: as passed, as recorded, or inferred from its name.

    That of the deciding metric must be known.
    """
    passed = question.directions or {}
    # A name without `val_` means the held-out values; the full name wins over it.
    resolved = {
        resolve_metric(name, names, "directions"): direction for name, direction in passed.items()
    } | {name: direction for name, direction in passed.items() if name in names}
    recorded = [
        record["directions"] for record in records if record["pipeline"] in (question.a, question.b)
    ]
    candidates = {
        name: {ways[name] for ways in recorded if name in ways} or {direction_of(name)}
        for name in names
    }
    # If records contradict each other, the direction is unknown.
    unique = {name: ways.pop() for name, ways in candidates.items() if len(ways) == 1}
    directions = {name: resolved.get(name) or unique.get(name) for name in names}
    if directions[deciding] is None:
        raise refused(
            "metric",
            "of known direction",
            deciding,
            f"Pass directions={{{deciding!r}: 'max'}} or 'min'; on the command line, --maximize "
            f"{deciding} or --minimize {deciding}.",
        )
    return directions


def resolve_metric(metric: str, names: Sequence[str], argument: str = "metric") -> str:
    """The name of a metric in the ledger, preferably of its held-out values.

    `argument` is the one by which `compare` received it, for the error message.
    """
    # Held-out values answer the question better, so they come first.
    for candidate in (f"val_{metric}", metric):
        if candidate in names:
            return candidate
    shown = main_metric(names) or next(iter(names), None)
    remedy = f"Pass metric={shown!r}, for example." if shown and argument == "metric" else ""
    known(f"Argument `{argument}` must name metrics that `a` or `b` has", [metric], names, remedy)
    return metric
