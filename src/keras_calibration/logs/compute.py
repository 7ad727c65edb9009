"""log_sums: the sums of a log, by the engine of its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_calibration.logs.embedded import Embedded, Selection
from keras_calibration.logs.log_sums import LogSums
from keras_calibration.logs.progress import Progress
from keras_calibration.logs.query import Query, total_sums
from keras_calibration.logs.scored_log import ScoredLog

_EVERYTHING = Selection()
# Of each kind of invalid row: the column that tells, what is named, its value, what is expected.
_CHECKS = (
    ("label", "y", "Labels must be in [0, 1]; for K classes, class numbers or names of classes."),
    ("prediction", "given", "Probabilities must be in [0, 1], and logits finite."),
    ("weight", "w", "Sample weights must be finite and not negative."),
    ("time", "t", "Times must be timestamps, dates, ISO 8601 texts or seconds since 1970."),
)


def log_sums(
    log: ScoredLog,
    queries: Mapping[str, Query],
    selection: Selection = _EVERYTHING,
    verbose: int = 0,
) -> LogSums:
    """The sums of the rows of a log, one table for each query, and their totals.

    Args:
        log: The log.
        queries: Name → query, for example from `scoring.log_queries`.
        selection: Which rows.
        verbose: 1 shows a progress bar, 0 does not.

    Raises:
        ImportError: If DuckDB, or Ray for a `ray.data.Dataset`, is not installed.
        ValueError: If the log cannot be read, columns are missing or of a wrong type, or rows are
            invalid.

    Example:
        >>> import pandas as pd
        >>> from keras_calibration.logs.query import field_sums
        >>> rows = pd.DataFrame({"label": [1, 0], "probability": [0.75, 0.25], "site": ["b", "a"]})
        >>> sums = log_sums(ScoredLog(rows, fields=["site"]), {"by site": field_sums(["site"])})
        >>> sums.table("by site")["residual"].tolist()
        [-0.25, 0.25]
    """
    queries = {"totals": total_sums(), **queries}
    if is_ray(log.source):
        from keras_calibration.logs.ray_blocks import ray_sums

        sums = ray_sums(log, queries, selection, verbose)
        _refuse(sums, None, selection)
        return sums
    with Embedded(log) as opened:
        progress = Progress(opened.num_rows() if verbose else 0, len(queries), verbose)
        tables = {}
        for name, query in queries.items():
            with opened.told(progress.tell if verbose else None):
                tables[name] = opened.sums(query, selection)
            progress.next()
            if name == "totals":
                _refuse(LogSums(tables), opened, selection)
    return LogSums(tables)


def is_ray(source: Any) -> bool:
    """Whether rows are a data set of Ray."""
    return type(source).__module__.partition(".")[0] == "ray"


def _refuse(sums: LogSums, opened: Embedded | None, selection: Selection) -> None:
    """Raises if the totals count invalid rows; names the first if the log is still open."""
    totals = {name: float(values[0]) for name, values in sums.table("totals").items()}
    for kind, column, expected in _CHECKS:
        count = int(totals[f"invalid_{kind}s"])
        if not count:
            continue
        first = opened and opened.first_row(f"NOT valid_{kind}", selection)
        example = f", for example a {kind} of {first[1].get(column)} in {first[0]}" if first else ""
        raise ValueError(
            f"{expected} Received: {count:,} invalid {kind}s in {int(totals['rows']):,} rows"
            f"{example}. Check the name of the column, or leave these rows out with `where`."
        )
