"""log_sums: the sums of a log, by the engine of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from calibration_records.logs.embedded import Embedded
from calibration_records.logs.files import LogFile
from calibration_records.logs.progress import Progress
from calibration_records.logs.query import Query, invalid_sums, quoted, total_sums
from calibration_records.logs.rows import Selection
from calibration_records.logs.scored_log import ScoredLog
from calibration_records.logs.sums import TOTALS, LogSums

_EVERYTHING = Selection()
# Check → the name of what is invalid, the column of its value, and what is expected.
_CHECKS = {
    "valid_label": ("label", "given_label", "Labels must be in [0, 1]."),
    "valid_prediction": (
        *("prediction", "given_prediction"),
        "Probabilities must be in [0, 1], not logits, and logits finite.",
    ),
    "valid_weight": ("weight", "given_weight", "Sample weights must be finite and not negative."),
    "valid_time": (
        *("time", "given_time"),
        "Times must be times, dates, ISO 8601 texts or seconds since 1970.",
    ),
}
_LABEL_TIMES = (
    "label time",
    "Label times must be times as in `timestamp`, not before it, or missing where there is no "
    "label.",
)
_CLASS_EXPECTATIONS = {
    "label": "Labels must be class numbers or the names of the classes, {}.",
    "prediction": "Probabilities must be in [0, 1], not logits, one for each of the classes {}, "
    "and add up to 1.",
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
        verbose: 1 shows a progress bar, 0 does not.
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
    is_late = log.label_time is not None and selection.purpose is not None
    if is_ray(log.source):
        from calibration_records.logs.ray_blocks import ray_sums

        sums = ray_sums(log, queries, selection, verbose)
        if check and sums.table(TOTALS)["invalid"][0]:
            counts = ray_sums(log, {"invalid": invalid_sums()}, selection, 0)
            raise ValueError(_refusal(counts, sums.num_rows, None, selection, is_late))
        return sums
    with Embedded(log) as opened:
        num_rows = opened.num_rows() if verbose else 0
        if verbose and opened.source.files:
            print(_what_is_read(opened.source.files))
        progress = Progress(num_rows, len(queries), verbose)
        tables = {}
        for name, query in queries.items():
            with opened.progress_shown(progress.tell if verbose else None):
                tables[name] = opened.sums(query, selection)
            progress.next()
            if name == TOTALS and check and tables[name].column("invalid")[0].as_py():
                counts = LogSums({"invalid": opened.sums(invalid_sums(), selection)})
                num_rows = LogSums(tables).num_rows
                raise ValueError(_refusal(counts, num_rows, opened, selection, is_late))
    return LogSums(tables)


def _what_is_read(files: Sequence[LogFile]) -> str:
    kind = "CSV" if files[0].is_csv else "Parquet"
    if len(files) == 1:
        return f"Reading 1 {kind} file: {files[0].path}"
    return f"Reading {len(files):,} {kind} files, from {files[0].path} to {files[-1].path}"


def num_classes(log: ScoredLog) -> int | None:
    """The length of the lists of probabilities of a log; None if each row has a single one.

    Raises:
        ValueError: If the lists differ in length.
    """
    if is_ray(log.source) or log.logit is not None or not isinstance(log.probability, str):
        return None
    with Embedded(log) as opened:
        if not opened.types[log.probability].endswith("]"):
            return None
        length = f"len({quoted(log.probability)})"
        (ends,) = opened.run(
            f"SELECT min({length}) AS low, max({length}) AS high FROM log"
        ).to_pylist()
    if ends["low"] != ends["high"]:
        raise ValueError(
            "Lists must have one entry per class. Received: "
            f"{log.probability!r} has lists of lengths {[*ends.values()]}."
        )
    return ends["low"]


def is_ray(source: Any) -> bool:
    """Whether rows are a data set of Ray."""
    return type(source).__module__.partition(".")[0] == "ray"


def _refusal(
    counts: LogSums, num_rows: int, opened: Embedded | None, selection: Selection, is_late: bool
) -> str:
    """How many rows are invalid, and which is the first, if the log is still open."""
    by_check = {name: int(values[0]) for name, values in counts.table("invalid").items()}
    name, count = next((name, count) for name, count in by_check.items() if count)
    kind, column, expected = _CHECKS[name]
    if is_late and name == "valid_label":
        kind, expected = _LABEL_TIMES
    if selection.class_names and kind in _CLASS_EXPECTATIONS:
        expected = _CLASS_EXPECTATIONS[kind].format([*selection.class_names])
    first = opened and opened.first_row(f"NOT {name}", selection)
    example = f", for example a {kind} of {first[1].get(column)} in {first[0]}" if first else ""
    return (
        f"{expected} Received: {count:,} invalid {kind}s in {num_rows:,} rows{example}. Check the "
        "name of the column, or leave these rows out with `where`."
    )
