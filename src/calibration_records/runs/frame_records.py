"""The records of the runs in a data frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibration_records._check import known
from calibration_records._columns import as_array, by_name, is_table
from calibration_records.runs.run_record import validate_record

# Columns that are not metrics.
_RUN_COLUMNS = ("pipeline", "seed", "epoch")


def frame_records(frame: Any, directions: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The checked records of a data frame, in the order in which their runs begin; see `Ledger`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"pipeline": "dcn", "seed": [1, 1], "epoch": [0, 1],
        ...                       "val_loss": [0.5, 0.25]})
        >>> [(run["seed"], run["metrics"]) for run in frame_records(frame)]
        [(1, {'val_loss': [0.5, 0.25]})]
    """
    columns: Any = by_name(frame) if is_table(frame) else {}
    names = [name for name in columns if name not in _RUN_COLUMNS]
    is_whole = {"pipeline", "seed"} <= {*columns} and not columns.repeated
    if not (is_whole and names and len(frame)):
        raise ValueError(
            "Argument `frame` must have rows, and distinct columns: 'pipeline', 'seed' and "
            f"metrics. Received: the columns {[*columns][:20]}."
        )
    known("Argument `directions` must name metrics of the data frame", directions or (), names)
    pipelines = as_array(columns["pipeline"]).tolist()
    if wrong := [name for name in pipelines if not isinstance(name, str) or not name]:
        raise ValueError(
            "Argument `frame` must hold a non-empty string in each row of the column 'pipeline'. "
            f"Received: {wrong[0]!r} in {len(wrong)} of {len(pipelines)} rows."
        )
    seeds = _read_integers(columns, "seed")
    epochs = _read_integers(columns, "epoch", 0) if "epoch" in columns else [0] * len(seeds)
    metrics = {name: _read_numbers(columns, name) for name in names}
    runs: dict[tuple[str, int], dict[int, int]] = {}
    for row, (pipeline, seed, epoch) in enumerate(zip(pipelines, seeds, epochs, strict=True)):
        rows = runs.setdefault((pipeline, seed), {})
        if epoch in rows:
            raise ValueError(
                "Argument `frame` must have one row for each pipeline, seed and epoch. Received: "
                f"several with pipeline={pipeline!r}, seed={seed}, epoch={epoch}."
            )
        rows[epoch] = row
    return [
        validate_record(
            {
                "pipeline": pipeline,
                "seed": seed,
                "status": "finished",
                "epochs": sorted(rows),
                "metrics": {
                    name: [values[rows[epoch]] for epoch in sorted(rows)]
                    for name, values in metrics.items()
                },
                "directions": dict(directions or {}),
            }
        )
        for (pipeline, seed), rows in runs.items()
    ]


def _read_numbers(columns: Mapping[str, Any], name: str) -> list[float]:
    """The finite values of a column."""
    values = as_array(columns[name], repr(name))
    if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise ValueError(
            f"Argument `frame` must hold finite numbers in each column that is not {_RUN_COLUMNS}. "
            f"Received: other values in the column {name!r}, of type {values.dtype}."
        )
    return list(values.astype(np.float64).tolist())


def _read_integers(columns: Mapping[str, Any], name: str, least: float = -np.inf) -> list[int]:
    """The exact integers of a column, of at least `least`."""
    values = as_array(columns[name], repr(name))
    is_exact = values.dtype.kind in "iu" or (
        values.dtype.kind == "f" and np.all((np.abs(values) < 2**53) & (np.floor(values) == values))
    )
    if not is_exact or values.min() < least:
        raise ValueError(
            f"Argument `frame` must hold integers{' of at least 0' * (least == 0)} in the column "
            f"{name!r}. Received: other values, of type {values.dtype}."
        )
    return [int(value) for value in values.tolist()]
