"""What is asked of two pipelines, checked against what the ledger has."""

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_calibration.ledger.metric_names import DIRECTIONS, direction_of
from keras_calibration.statistics.estimate import check_confidence


class Question(NamedTuple):
    """What is asked of two pipelines: the arguments of `compare` that are not data."""

    metric: str = "calibrated_log_loss"
    epoch: int | str = "kept"
    delta: float | None = None
    confidence: float = 0.95
    num_looks: int | None = 1
    directions: Mapping[str, str] | None = None


def check_question(a: str, b: str, question: Question) -> None:
    """Refuses arguments out of their range."""
    check_confidence(question.confidence)
    epoch, delta, directions = question.epoch, question.delta, question.directions or {}
    if a == b:
        raise ValueError(
            f"Received a={a!r} and b={b!r}; expected two pipelines; record the variant under a "
            "name of its own."
        )
    is_number = isinstance(epoch, int) and not isinstance(epoch, bool) and epoch >= 0
    if not (is_number or epoch in ("kept", "last", "best")):
        raise ValueError(
            f"Received epoch={epoch!r}; expected 'kept', 'last', 'best' or an int; epochs are "
            "numbered from 0."
        )
    if delta is not None and not 0 < delta < math.inf:
        raise ValueError(
            f"Received delta={delta!r}; expected a positive difference, in the unit of the metric; "
            "leave it out where no difference is too small to matter."
        )
    if wrong := [way for way in directions.values() if way not in DIRECTIONS]:
        raise ValueError(
            f"Received directions={dict(directions)!r}; expected 'min' or 'max' for each metric, "
            f"not {wrong[0]!r}."
        )


def recorded_metrics(records: Sequence[Mapping[str, Any]], a: str, b: str) -> list[str]:
    """The metrics that the runs of either pipeline have."""
    pipelines = {record["pipeline"] for record in records}
    for name in (a, b):
        if name not in pipelines:
            raise ValueError(
                f"Received the pipeline {name!r}; expected one of the ledger's, "
                f"{sorted(pipelines)[:20]}; `keras-calibration runs` lists them."
            )
    mine = (record["metrics"] for record in records if record["pipeline"] in (a, b))
    return list(dict.fromkeys(name for metrics in mine for name in metrics))


def metric_directions(
    records: Sequence[Mapping[str, Any]],
    a: str,
    b: str,
    names: Sequence[str],
    given: Mapping[str, str] | None,
) -> dict[str, str | None]:
    """For each metric whether "min" or "max" is better: as told, as recorded, or by its name."""
    told = {resolve_metric(name, names): way for name, way in (given or {}).items()}
    told |= {name: way for name, way in (given or {}).items() if name in names}
    recorded: dict[str, set[str]] = {}
    for record in records:
        if record["pipeline"] in (a, b):
            for name, way in record["directions"].items():
                recorded.setdefault(name, set()).add(way)
    directions: dict[str, str | None] = {}
    for name in names:
        ways = recorded.get(name, set())
        # Runs that contradict each other say nothing.
        by_runs = next(iter(ways)) if len(ways) == 1 else None
        directions[name] = told.get(name) or (by_runs if ways else direction_of(name))
    return directions


def deciding_direction(metric: str, directions: Mapping[str, str | None]) -> str:
    """The direction of the metric that decides, which must be known."""
    direction = directions[metric]
    if direction is None:
        raise ValueError(
            f"Received metric={metric!r}, of which neither its name nor the runs say whether larger"
            f" is better; expected a metric of known direction; pass directions={{{metric!r}: "
            f"'max'}} or 'min' (in the command line --maximize or --minimize {metric})."
        )
    return direction


def resolve_metric(metric: str, names: Sequence[str]) -> str:
    """The name of a metric in the ledger, held out where it is recorded."""
    for candidate in (f"val_{metric}", metric):
        if candidate in names:
            return candidate
    close = difflib.get_close_matches(metric, names) or list(names)
    raise ValueError(
        f"Received metric={metric!r}; expected one that the runs of both pipelines have, perhaps "
        f"{close[:10]}; pass metric=NAME (in the command line --metric NAME)."
    )
