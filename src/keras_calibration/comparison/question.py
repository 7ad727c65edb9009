"""The question of a comparison, and its checks against the ledger."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keras_calibration._typing import RunRecord
from keras_calibration.ledger.metric_names import DIRECTIONS, direction_of
from keras_calibration.statistics.estimate import check_confidence

MAX_LOOKS = 50


class Question(NamedTuple):
    """Two pipelines and the options of `compare`."""

    a: str
    b: str
    metric: str = "calibrated_log_loss"
    epoch: int | str = "kept"
    delta: float | None = None
    confidence: float = 0.95
    num_looks: int | None = 1
    directions: Mapping[str, str] | None = None


def check_question(question: Question) -> None:
    """Refuses invalid arguments."""
    check_confidence(question.confidence)
    epoch, delta, directions = question.epoch, question.delta, question.directions or {}
    if question.a == question.b:
        raise ValueError(
            "Arguments `a` and `b` must be different pipelines. Received: "
            f"a={question.a!r}, b={question.b!r}."
        )
    is_number = isinstance(epoch, int) and not isinstance(epoch, bool) and epoch >= 0
    if not (is_number or epoch in ("kept", "last", "best")):
        raise ValueError(
            "Argument `epoch` must be 'kept', 'last', 'best' or an integer of at least 0. "
            f"Received: epoch={epoch!r}."
        )
    if delta is not None and not 0 < delta < math.inf:
        raise ValueError(
            "Argument `delta` must be a positive number, in the unit of the metric, or None. "
            f"Received: delta={delta!r}."
        )
    looks = question.num_looks
    if looks is not None and not 1 <= looks <= MAX_LOOKS:
        raise ValueError(
            f"Argument `num_looks` must be between 1 and {MAX_LOOKS}, or None for any number of "
            f"looks. Received: num_looks={looks!r}."
        )
    if any(direction not in DIRECTIONS for direction in directions.values()):
        raise ValueError(
            "Argument `directions` must map metrics to 'min' or 'max'. Received: "
            f"directions={dict(directions)!r}."
        )


def recorded_metrics(records: Sequence[RunRecord], question: Question) -> list[str]:
    """The metrics of the runs of either pipeline."""
    pipelines = {record["pipeline"] for record in records}
    for name in (question.a, question.b):
        if name not in pipelines:
            raise ValueError(
                "Arguments `a` and `b` must be pipelines of the ledger, for example "
                f"{sorted(pipelines)[:20]}. Received: {name!r}. `keras-calibration runs` lists "
                "them."
            )
    compared = _compared(records, question)
    return list(dict.fromkeys(name for record in compared for name in record["metrics"]))


def _compared(records: Sequence[RunRecord], question: Question) -> list[RunRecord]:
    """The records of either pipeline."""
    return [record for record in records if record["pipeline"] in (question.a, question.b)]


def metric_directions(
    records: Sequence[RunRecord], question: Question, names: Sequence[str]
) -> dict[str, str | None]:
    """The direction of each metric: as given, as recorded, or inferred from its name."""
    given = question.directions or {}
    resolved = {resolve_metric(name, names): direction for name, direction in given.items()}
    resolved |= {name: direction for name, direction in given.items() if name in names}
    recorded: dict[str, set[str]] = {}
    for record in _compared(records, question):
        for name, direction in record["directions"].items():
            recorded.setdefault(name, set()).add(direction)
    directions: dict[str, str | None] = {}
    for name in names:
        found = recorded.get(name, {direction_of(name)})
        # Contradictory records are ignored.
        directions[name] = resolved.get(name) or (next(iter(found)) if len(found) == 1 else None)
    return directions


def deciding_direction(metric: str, directions: Mapping[str, str | None]) -> str:
    """The direction of the deciding metric, which must be known."""
    direction = directions[metric]
    if direction is None:
        raise ValueError(
            f"Argument `metric` must have a known direction. Received: metric={metric!r}. Pass "
            f"directions={{{metric!r}: 'max'}} or 'min'; on the command line, --maximize {metric} "
            f"or --minimize {metric}."
        )
    return direction


def resolve_metric(metric: str, names: Sequence[str]) -> str:
    """The name of a metric in the ledger, preferably of its held-out values."""
    for candidate in (f"val_{metric}", metric):
        if candidate in names:
            return candidate
    close = difflib.get_close_matches(metric, names) or list(names)
    raise ValueError(
        f"Argument `metric` must be recorded for both pipelines, for example {close[:10]}. "
        f"Received: metric={metric!r}. On the command line, pass --metric NAME."
    )
