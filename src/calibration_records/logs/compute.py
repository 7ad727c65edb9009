"""log_sums: the sums of a log, by the engine of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from calibration_records._progress import ProgressBar
from calibration_records.logs.embedded import Embedded
from calibration_records.logs.query import CHECKED, Query, total_sums
from calibration_records.logs.rows import Selection
from calibration_records.logs.scored_log import ScoredLog
from calibration_records.logs.sums import TOTALS, LogSums

_EVERYTHING = Selection()
# What is invalid → what is expected.
_EXPECTED = {
    "label": "Labels must be in [0, 1].",
    "prediction": "Probabilities must be in [0, 1], not logits, and logits finite.",
    "weight": "Sample weights must be finite and not negative.",
    "time": "Times must be times, dates, ISO 8601 texts or seconds since 1970.",
}


def log_sums(
    log: ScoredLog,
    queries: Mapping[str, Query],
    selection: Selection = _EVERYTHING,
    verbose: int = 0,
    check: bool = True,
) -> LogSums:
    """The sums of the rows of a log, one table for each query, and their totals.

    Args:
        log: The log.
        queries: Name → query, for example from `scoring.log_queries`.
        selection: Which rows.
        verbose: 1 shows a progress bar over the passes of DuckDB, 0 does not.
        check: Whether to count invalid rows, in one more pass. False for rows that were checked.

    Raises:
        ImportError: If DuckDB, or Ray for a `ray.data.Dataset`, is not installed.
        ValueError: If the log cannot be read, columns are missing or of a wrong type, or rows are
            invalid.

    Example:
        >>> import pandas as pd
        >>> from calibration_records.logs.query import field_sums
        >>> rows = pd.DataFrame({"label": [1, 0], "probability": [0.75, 0.25], "site": ["b", "a"]})
        >>> sums = log_sums(ScoredLog(rows, fields=["site"]), {"by site": field_sums(["site"])})
        >>> sums.table("by site")["residual"].tolist()
        [-0.25, 0.25]
    """
    if check:
        # Invalid rows are counted in the pass over all rows, if there is one.
        totals = queries.get(TOTALS, Query({}, {}))
        totals = dataclasses.replace(totals, sums={**total_sums().sums, **totals.sums})
        queries = {TOTALS: totals, **{n: query for n, query in queries.items() if n != TOTALS}}
    if is_ray(log.source):
        from calibration_records.logs.ray_blocks import ray_sums

        sums = ray_sums(log, queries, selection)
        if check and (kind := _invalid(sums)):
            raise _refusal(sums, kind)
        return sums
    bar, tables = ProgressBar(len(queries), "passes", verbose), {}
    with Embedded(log) as opened:
        for name, query in queries.items():
            tables[name] = opened.sums(query, selection)
            if check and name == TOTALS and (kind := _invalid(LogSums(tables))):
                raise _refusal(
                    LogSums(tables), kind, opened.first_row(f"NOT valid_{kind}", selection)
                )
            bar.add()
    return LogSums(tables)


def is_ray(source: Any) -> bool:
    """Whether rows are a data set of Ray."""
    return type(source).__module__.partition(".")[0] == "ray"


def _invalid(sums: LogSums) -> str | None:
    """What is invalid in some rows."""
    totals = sums.table(TOTALS) if sums.names else {}
    return next((kind for kind in CHECKED if totals and totals[f"invalid_{kind}"][0]), None)


def _refusal(sums: LogSums, kind: str, first: Mapping[str, Any] | None = None) -> ValueError:
    """How many rows are invalid, and which is the first, if it is known."""
    count, example = int(sums.table(TOTALS)[f"invalid_{kind}"][0]), ""
    if first is not None:
        file = f" of the log, in {first['given_file']}" if first["given_file"] else ""
        value, row = first[f"given_{kind}"], first["given_row"]
        example = f", for example a {kind} of {value} in row {row}{file}"
    return ValueError(
        f"{_EXPECTED[kind]} Received: {count:,} invalid {kind}s in {sums.num_rows:,} rows"
        f"{example}. Check the name of the column, or leave these rows out with `where`."
    )
