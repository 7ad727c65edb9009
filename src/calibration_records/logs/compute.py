"""log_sums: the sums of a log, by the engine of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from calibration_records._progress import ProgressBar
from calibration_records._warn import warn
from calibration_records.logs.embedded import open_log
from calibration_records.logs.query import Query, total_sums
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
_CONVERT = (
    "Convert other numbers: milliseconds / 1000, days * 86400, or for 20260307 "
    "strptime(day::VARCHAR, '%Y%m%d')."
)
_ODD = {
    "time": "times in 1970 or before, or years ahead{}. Numbers are read as seconds since 1970. "
    f"{_CONVERT} Leave placeholders such as 0 or 2099-12-31 out with `where`.",
    "id": "ids or field values as floats of at least 2**24 (float32) or 2**53 (float64), where "
    "neighbouring ids are equal. Write the column as integers or strings.",
    "logit": "logits in [0, 1]: they look like probabilities. Name them in `probability`, and not "
    "in `logit`, of the ScoredLog.",
}
# With fewer rows, all logits may lie in [0, 1] by chance.
_MANY_ROWS = 100


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
        verbose: 1 shows a progress bar over the passes of DuckDB, 0 does not.

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
    # The pass over all rows counts invalid rows too, and comes first: no later pass reads bad rows.
    totals = queries.get(TOTALS, Query({}, {}))
    totals = dataclasses.replace(totals, sums={**total_sums().sums, **totals.sums})
    queries = {TOTALS: totals, **{n: query for n, query in queries.items() if n != TOTALS}}
    if is_ray(log.source):
        from calibration_records.logs.ray_blocks import ray_sums

        sums = ray_sums(log, queries, selection)
        _check_totals(sums)
        return sums
    bar, tables = ProgressBar(len(queries), "passes", verbose), {}
    with open_log(log) as opened:
        for name, query in queries.items():
            tables[name] = opened.sums(query, selection)
            if name == TOTALS:
                _check_totals(LogSums(tables), lambda rows: opened.first_row(rows, selection))
            bar.add()
    return LogSums(tables)


def is_ray(source: Any) -> bool:
    """Whether rows are a data set of Ray."""
    return type(source).__module__.partition(".")[0] == "ray"


def _check_totals(
    sums: LogSums, first_row: Callable[[str], Mapping[str, Any]] | None = None
) -> None:
    """Raises for invalid rows, and warns of values that are probably misread."""
    totals = sums.table(TOTALS) if sums.names else {}
    for name in totals:
        state, _, kind = name.partition("_")
        # A single logit in [0, 1] is normal; only if all are, they look like probabilities.
        fewest = max(sums.num_rows, _MANY_ROWS) if kind == "logit" else 1
        if state not in ("invalid", "odd") or totals[name][0] < fewest:
            continue
        # An example tells more than a count. Ray's sums have none: their rows are elsewhere.
        condition = f"NOT valid_{kind}" if state == "invalid" else name
        first = None if first_row is None else first_row(condition)
        if state == "invalid":
            raise _build_row_error(sums, kind, first)
        example = ""
        if first is not None and kind == "time":
            # Not by `datetime`, which ends at the years 1 and 9999.
            example = (
                f", for example {first['given_time']} as "
                f"{np.datetime64(int(first['t']), 's').astype('datetime64[D]')}"
            )
        warn(f"{totals[name][0]:,.0f} of {sums.num_rows:,} rows have {_ODD[kind].format(example)}")


def _build_row_error(sums: LogSums, kind: str, first: Mapping[str, Any] | None) -> ValueError:
    """The error that tells how many rows are invalid, with `first`, the first invalid row."""
    count, example = int(sums.table(TOTALS)[f"invalid_{kind}"][0]), ""
    remedy = _CONVERT if kind == "time" else "Check the name of the column."
    if first is not None:
        file = f" of the log, in {first['given_file']}" if first["given_file"] else ""
        value = first[f"given_{kind}"]
        example = f", for example a {kind} of {value} in row {first['given_row']}{file}"
    return ValueError(
        f"{_EXPECTED[kind]} Received: {count:,} invalid {kind}s in {sums.num_rows:,} rows"
        f"{example}. {remedy} Or leave these rows out with `where`."
    )
