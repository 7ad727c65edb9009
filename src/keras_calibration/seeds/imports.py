"""Runs that were recorded elsewhere, taken into a ledger: CSV tables and MLflow's run folders."""

import csv
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_calibration.seeds.ledger import Ledger, validate_record

_RUN_COLUMNS = ("pipeline", "seed")


def import_csv(
    ledger: Ledger,
    path: str | os.PathLike[str],
    pipeline: str | None = None,
    seed: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[str]:
    r"""Takes the runs of a CSV file into a ledger.

    A line is an epoch of a run, and lines with the same pipeline and seed are one run; without a
    column `epoch` each line is a run of its own. All other columns are metrics; an empty cell was
    not measured. Keras' `CSVLogger` writes one run a file: give its pipeline and seed here.

    Args:
        ledger: where the runs go.
        path: CSV file with a header, in UTF-8.
        pipeline: of all lines, where the file has no such column.
        seed: of all lines, where the file has no such column.
        columns: names of the columns `pipeline`, `seed` and `epoch` where they differ, as in
            `{"seed": "trial"}`.

    Returns:
        The run ids, in the order of the file.

    Raises:
        ValueError: a column is missing, or a cell is no number. No run is taken then.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     path = Path(name, "runs.csv")
        ...     _ = path.write_text("pipeline,seed,val_loss\ndcn,1,0.5\ndcn,2,0.25\n")
        ...     ledger = Ledger(Path(name, "runs"))
        ...     _ = import_csv(ledger, path)
        ...     [run["metrics"] for run in ledger.runs()]
        [{'val_loss': [0.5]}, {'val_loss': [0.25]}]
    """
    columns = {name: name for name in (*_RUN_COLUMNS, "epoch")} | dict(columns or {})
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        header, lines = reader.fieldnames or [], list(reader)
    given = {"pipeline": pipeline, "seed": seed}
    missing = [
        columns[name]
        for name in _RUN_COLUMNS
        if given[name] is None and columns[name] not in header
    ]
    if missing:
        raise ValueError(
            f"Received {str(path)!r} with the columns {header}; expected {missing} among them; "
            "name the columns in `columns`, or pass pipeline= and seed= for the whole file."
        )
    runs: dict[Any, list[dict[str, Any]]] = {}
    for number, line in enumerate(lines, start=2):
        name = pipeline if pipeline is not None else line[columns["pipeline"]]
        run_seed = seed if seed is not None else int(_number(line[columns["seed"]], path, number))
        single = columns["epoch"] not in header
        epoch = 0 if single else int(_number(line[columns["epoch"]], path, number))
        values = {
            column: _number(cell, path, number) if cell else None
            for column, cell in line.items()
            if column not in columns.values()
        }
        key = (name, run_seed, number if single else None)
        runs.setdefault(key, []).append({"epoch": epoch, **values})
    records = []
    for (name, run_seed, _), rows in runs.items():
        rows.sort(key=lambda row: row["epoch"])
        metrics = {column: [row[column] for row in rows] for column in rows[0] if column != "epoch"}
        records.append(_record(name, run_seed, [row["epoch"] for row in rows], metrics))
    # All are checked before the first is written.
    records = [validate_record(record) for record in records]
    return [ledger.append(record) for record in records]


def import_mlflow(
    ledger: Ledger, folder: str | os.PathLike[str], pipeline: str, seed: int | None = None
) -> str:
    """Takes one run of MLflow's file store, or of its export, into a ledger.

    A run's folder has `metrics/NAME`, with a line `time value step` for each value, and
    `params/NAME`. The steps become the epochs, the parameters the configuration.

    Args:
        ledger: where the run goes.
        folder: the run's folder, as in `mlruns/0/4f2c…`.
        pipeline: of the run.
        seed: of the run; `None` for its parameter `seed`.

    Returns:
        The run id.

    Raises:
        ValueError: the folder has no metrics, or there is no seed.
    """
    root = Path(folder)
    metrics_folder, parameters_folder = root / "metrics", root / "params"
    parameters = {
        file.relative_to(parameters_folder).as_posix(): file.read_text(encoding="utf-8")
        for file in sorted(parameters_folder.rglob("*"))
        if file.is_file()
    }
    values: dict[str, dict[int, float]] = {}
    for file in sorted(metrics_folder.rglob("*")):
        if file.is_file():
            lines = [line.split() for line in file.read_text().splitlines() if line.strip()]
            name = file.relative_to(metrics_folder).as_posix()
            values[name] = {int(step): float(value) for _, value, step in lines}
    if not values or (seed is None and "seed" not in parameters):
        raise ValueError(
            f"Received {str(root)!r} with the metrics {list(values)} and the parameters "
            f"{list(parameters)}; expected a run with metrics and a parameter 'seed'; pass the "
            "folder of one run, and seed= where it was not logged."
        )
    epochs = sorted({step for steps in values.values() for step in steps})
    metrics = {name: [steps.get(epoch) for epoch in epochs] for name, steps in values.items()}
    run_seed = seed if seed is not None else int(parameters["seed"])
    return ledger.append(
        {**_record(pipeline, run_seed, epochs, metrics), "configuration": parameters}
    )


def _record(
    pipeline: str, seed: int, epochs: list[int], metrics: dict[str, list[float | None]]
) -> dict[str, Any]:
    values = [value for series in metrics.values() for value in series if value is not None]
    status = "finished" if all(map(math.isfinite, values)) else "diverged"
    return {
        "pipeline": pipeline,
        "seed": seed,
        "status": status,
        "epochs": epochs,
        "metrics": metrics,
    }


def _number(cell: str, path: str | os.PathLike[str], line: int) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Received {cell!r} in line {line} of {str(path)!r}; expected a number; leave cells "
            "empty that were not measured, and take columns of text out of the file."
        ) from error
