"""The records of the runs in a data frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibration_records._check import known
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
    names = _find_metric_names(frame)
    known("Argument `directions` must name metrics of the data frame", directions or (), names)
    pipelines = np.asarray(frame["pipeline"]).tolist()
    seeds = _read_integers(frame, "seed")
    epochs = _read_integers(frame, "epoch") if "epoch" in frame.columns else [0] * len(seeds)
    metrics = {name: _read_numbers(frame, name) for name in names}
    runs: dict[tuple[str, int], dict[int, int]] = {}
    for row, (pipeline, seed, epoch) in enumerate(zip(pipelines, seeds, epochs, strict=True)):
        rows = runs.setdefault((pipeline, seed), {})
        if epoch in rows:
            raise ValueError(
                "Argument `frame` must have one row for each pipeline, seed and epoch. Received: "
                f"several with pipeline={pipeline!r}, seed={seed}, epoch={epoch}."
            )
        rows[epoch] = row
    records = []
    for (pipeline, seed), rows in runs.items():
        chosen = [rows[epoch] for epoch in sorted(rows)]
        record = {
            "pipeline": pipeline,
            "seed": seed,
            "status": "finished",
            "epochs": sorted(rows),
            "metrics": {name: [values[row] for row in chosen] for name, values in metrics.items()},
            "directions": dict(directions or {}),
        }
        records.append(validate_record(record))
    return records


def _find_metric_names(frame: Any) -> list[str]:
    """The columns that are metrics."""
    columns = list(getattr(frame, "columns", ()))
    names = [name for name in columns if name not in _RUN_COLUMNS]
    is_whole = {"pipeline", "seed"} <= {*columns} and len({*columns}) == len(columns)
    if not (is_whole and names and all(isinstance(name, str) for name in names) and len(frame)):
        raise ValueError(
            "Argument `frame` must have rows, and distinct columns: 'pipeline', 'seed' and "
            f"metrics. Received: the columns {columns[:20]}."
        )
    return names


def _read_numbers(frame: Any, name: str) -> list[float]:
    """The finite values of a column."""
    values = np.asarray(frame[name])
    if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise ValueError(
            f"Argument `frame` must hold finite numbers in each column that is not {_RUN_COLUMNS}. "
            f"Received: other values in the column {name!r}, of type {values.dtype}."
        )
    return list(values.astype(np.float64).tolist())


def _read_integers(frame: Any, name: str) -> list[int]:
    """The exact integers of a column."""
    values = np.asarray(frame[name])
    is_exact = values.dtype.kind in "iu" or (
        values.dtype.kind == "f" and np.all((np.abs(values) < 2**53) & (np.floor(values) == values))
    )
    if not is_exact:
        raise ValueError(
            f"Argument `frame` must hold integers in the column {name!r}. Received: other values, "
            f"of type {values.dtype}."
        )
    return [int(value) for value in values.tolist()]
