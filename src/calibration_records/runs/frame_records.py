"""The records of the runs in a data frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibration_records.runs.run_record import validate_record

# Columns that are no metrics.
_RUN_COLUMNS = ("pipeline", "seed", "epoch")
# From here on, a float may stand for several integers.
_MAX_FLOAT = 2**53
_MAX_SHOWN = 40


def frame_records(frame: Any, directions: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The checked records of a data frame, in the order in which their runs begin; see `Ledger`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"pipeline": "dcn", "seed": [1, 1], "epoch": [0, 1],
        ...                       "val_loss": [0.5, 0.25]})
        >>> [(run["seed"], run["metrics"]) for run in frame_records(frame)]
        [(1, {'val_loss': [0.5, 0.25]})]
    """
    directions = dict(directions or {})
    names = _metric_names(frame, directions)
    pipelines, seeds = np.asarray(frame["pipeline"]).tolist(), _integers(frame, "seed")
    epochs = _integers(frame, "epoch") if "epoch" in frame.columns else [0] * len(seeds)
    metrics = {name: _numbers(frame, name) for name in names}
    runs: dict[tuple[str, int], dict[int, int]] = {}
    for row, (pipeline, seed, epoch) in enumerate(zip(pipelines, seeds, epochs, strict=True)):
        rows = runs.setdefault((pipeline, seed), {})
        if epoch in rows:
            raise ValueError(
                "Argument `frame` must have one row for each pipeline, seed and epoch. Received: "
                f"rows {rows[epoch]} and {row} with pipeline={_shown(pipeline)}, seed={seed}, "
                f"epoch={epoch}. Leave out repeated runs, or name the epochs in a column `epoch`."
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
                "directions": directions,
            }
        )
        for (pipeline, seed), rows in runs.items()
    ]


def _metric_names(frame: Any, directions: Mapping[str, str]) -> list[str]:
    """The columns that are metrics, after a check of all names."""
    columns = list(getattr(frame, "columns", ()))
    shown = [_shown(name) for name in columns[:20]]
    if missing := [name for name in ("pipeline", "seed") if name not in columns]:
        raise ValueError(
            f"Argument `frame` must have the columns 'pipeline' and 'seed'. Received: no {missing} "
            f"among the {len(columns)} columns {', '.join(shown)}. Rename or add the columns."
        )
    names = [name for name in columns if name not in _RUN_COLUMNS]
    is_text = all(isinstance(name, str) for name in names)
    if not (names and is_text and len(set(columns)) == len(columns) and len(frame)):
        raise ValueError(
            "Argument `frame` must have a row for each run or epoch, and columns with distinct "
            f"names, of which at least one is a metric. Received: {len(frame)} rows and the "
            f"columns {', '.join(shown)}."
        )
    if unknown := [name for name in directions if name not in names]:
        raise ValueError(
            "Argument `directions` must name metrics of the data frame. Received: "
            f"{_shown(unknown[0])}, which is not a column."
        )
    return names


def _numbers(frame: Any, name: str) -> list[float]:
    """The finite values of a column."""
    values = np.asarray(frame[name])
    if values.dtype.kind not in "fiu":
        raise ValueError(
            f"Argument `frame` must hold numbers in each column that is not {_RUN_COLUMNS}. "
            f"Received: values of type {values.dtype} in the column {_shown(name)}. Drop the "
            "column, or convert it with .astype(float)."
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(
            f"Argument `frame` must hold finite numbers. Received: {values[bad[0]]} in row "
            f"{bad[0]} of the column {_shown(name)}, and {bad.size - 1} more. Leave out runs that "
            "diverged, and epochs or columns that were not measured, for example with .dropna()."
        )
    return [float(value) for value in values.tolist()]


def _integers(frame: Any, name: str) -> list[int]:
    """The exact integers of a column."""
    values = np.asarray(frame[name])
    is_exact = np.full(values.shape, values.dtype.kind in "iu")
    if values.dtype.kind == "f":
        is_exact = (np.abs(values) < _MAX_FLOAT) & (np.floor(values) == values)
    if not is_exact.all():
        row = int(np.argmin(is_exact))
        raise ValueError(
            f"Argument `frame` must hold integers in the column {name!r}. Received: "
            f"{_shown(values[row])} in row {row}, of type {values.dtype}. Convert it with "
            ".astype(int)."
        )
    return [int(value) for value in values.tolist()]


def _shown(value: object) -> str:
    """A value for an error message, without control characters and never long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
