"""Imports runs into a ledger from CSV, TensorBoard and MLflow."""

import csv
import math
import os
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from keras_calibration.ledger.ledger import Ledger
from keras_calibration.ledger.run_record import validate_record

_RUN_COLUMNS = ("pipeline", "seed")
# Prefix of the epoch-level tags of `keras.callbacks.TensorBoard`.
_EPOCH_TAG = "epoch_"
# Largest number of digits of a seed or an epoch; enough for 64 bits.
_MAX_DIGITS = 20


class _Cell(NamedTuple):
    """A text that should be a number, and its place for error messages."""

    text: str
    place: str


def import_csv(
    ledger: Ledger,
    path: str | os.PathLike[str],
    *,
    pipeline: str | None = None,
    seed: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[str]:
    r"""Imports the runs of a CSV file into a ledger.

    Each line is an epoch. Lines with the same pipeline and seed form a run; without a column
    `epoch`, each line is a run. All other columns are metrics; an empty cell is a missing value.
    Seeds and epochs are whole numbers, also written as `7.0`. For a file of Keras' `CSVLogger`,
    which holds one run, pass `pipeline` and `seed`.

    Args:
        ledger: The ledger to write to.
        path: CSV file with a header, in UTF-8.
        pipeline: Pipeline of all lines, if the file has no such column.
        seed: Seed of all lines, if the file has no such column.
        columns: Names of the columns `pipeline`, `seed` and `epoch` if they differ, for example
            `{"seed": "trial"}`.

    Returns:
        The run ids, in the order of the file.

    Raises:
        ValueError: A column is missing or repeated, a line has more or fewer cells than the header,
            or a cell is not a number (a whole one for seeds and epochs). Nothing is imported.

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
    header, lines = _read_table(Path(path))
    given = {"pipeline": pipeline, "seed": seed}
    missing = [
        columns[name]
        for name in _RUN_COLUMNS
        if given[name] is None and columns[name] not in header
    ]
    if missing:
        named = [name if len(name) <= 60 else f"{name[:60]}…" for name in header]
        raise ValueError(
            f"The CSV file must have the columns {missing}. Received: {str(path)!r} with the "
            f"columns {named}. Name the columns in `columns`, or pass `pipeline` and `seed` for "
            "the whole file."
        )
    cells = {
        number: {
            column: _Cell(text, f"line {number} of the column {column!r} in {str(path)!r}")
            for column, text in line.items()
        }
        for number, line in lines.items()
    }
    runs = _group_by_run(cells, given, columns, has_epochs=columns["epoch"] in header)
    # All records are checked before the first is written.
    records = [
        validate_record(_record_of_rows(name, run_seed, rows))
        for (name, run_seed, _), rows in runs.items()
    ]
    return [ledger.append(record) for record in records]


def _group_by_run(
    lines: Mapping[int, Mapping[str, _Cell]],
    given: Mapping[str, Any],
    columns: Mapping[str, str],
    *,
    has_epochs: bool,
) -> dict[tuple[str, int, int | None], list[tuple[int, dict[str, float | None]]]]:
    """Epoch and metrics of each line by pipeline and seed; without epochs, each line is a run."""
    runs: dict[tuple[str, int, int | None], list[tuple[int, dict[str, float | None]]]] = {}
    for number, cells in lines.items():
        pipeline, seed = given["pipeline"], given["seed"]
        if pipeline is None:
            pipeline = cells[columns["pipeline"]].text
        if seed is None:
            seed = _integer(cells[columns["seed"]])
        epoch = _integer(cells[columns["epoch"]]) if has_epochs else 0
        values = {
            column: _number(cell) if cell.text else None
            for column, cell in cells.items()
            if column not in columns.values()
        }
        key = (pipeline, seed, None if has_epochs else number)
        runs.setdefault(key, []).append((epoch, values))
    return runs


def _record_of_rows(
    pipeline: str, seed: int, rows: list[tuple[int, dict[str, float | None]]]
) -> dict[str, Any]:
    """A record of the values of each epoch."""
    rows = sorted(rows, key=lambda row: row[0])
    metrics = {name: [values[name] for _, values in rows] for name in rows[0][1]}
    return _record(pipeline, seed, [epoch for epoch, _ in rows], metrics)


def import_mlflow(
    ledger: Ledger, folder: str | os.PathLike[str], *, pipeline: str, seed: int | None = None
) -> str:
    """Imports a run from MLflow's file store, or from an export of it, into a ledger.

    The folder of a run has `metrics/NAME`, with a line `time value step` for each value, and
    `params/NAME`. Steps become epochs, and parameters become the configuration.

    Args:
        ledger: The ledger to write to.
        folder: Folder of the run, for example `mlruns/0/4f2c…`.
        pipeline: Name of the pipeline.
        seed: Seed of the run; `None` for its parameter `seed`.

    Returns:
        The run id.

    Raises:
        ValueError: The folder has no metrics, or there is no seed.
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
            name = file.relative_to(metrics_folder).as_posix()
            values[name] = _read_mlflow_metric(file)
    if not values or (seed is None and "seed" not in parameters):
        raise ValueError(
            "Argument `folder` must be the folder of a run with metrics and a parameter 'seed'. "
            f"Received: {str(root)!r} with the metrics {list(values)} and the parameters "
            f"{list(parameters)}. Pass `seed` if it was not logged."
        )
    run_seed = seed
    if run_seed is None:
        run_seed = _integer(_Cell(parameters["seed"], str(parameters_folder / "seed")))
    record = _record_of_steps(pipeline, run_seed, values)
    return ledger.append({**record, "configuration": parameters})


def _read_mlflow_metric(file: Path) -> dict[int, float]:
    """Step → value in a metric's file; the last value of a step counts."""
    values = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        place = f"line {number} of {str(file)!r}"
        parts = line.split()
        if len(parts) not in (0, 3):
            raise ValueError(
                "A line of an MLflow metric must hold time, value and step. Received: "
                f"{_shown(line)} in {place}."
            )
        if parts:
            values[_integer(_Cell(parts[2], place))] = _number(_Cell(parts[1], place))
    return values


def import_tensorboard(
    ledger: Ledger, folder: str | os.PathLike[str], *, pipeline: str, seed: int
) -> str:
    """Imports a run from TensorBoard's event files into a ledger; requires only TensorFlow.

    The epoch-level scalars of `keras.callbacks.TensorBoard` get their names in the logs:
    `epoch_auc` becomes `auc` in the folder `train` and `val_auc` in `validation`. Scalars of other
    programs keep their tags, with the name of their subfolder in front, and their steps become
    epochs. The last value of a step counts, and a truncated file is read as far as possible.

    Args:
        ledger: The ledger to write to.
        folder: The run's `log_dir`.
        pipeline: Name of the pipeline.
        seed: Seed of the run.

    Returns:
        The run id.

    Raises:
        ValueError: The folder has no event file with scalars, or has several runs.

    Example:
        >>> import tempfile
        >>> import tensorflow as tf
        >>> with tempfile.TemporaryDirectory() as name:
        ...     value = tf.compat.v1.Summary.Value(tag="epoch_loss", simple_value=0.5)
        ...     event = tf.compat.v1.Event(summary=tf.compat.v1.Summary(value=[value]))
        ...     path = Path(name, "log", "validation", "events.out.tfevents.1")
        ...     path.parent.mkdir(parents=True)
        ...     with tf.io.TFRecordWriter(str(path)) as file:
        ...         file.write(event.SerializeToString())
        ...     ledger = Ledger(Path(name, "runs"))
        ...     _ = import_tensorboard(ledger, Path(name, "log"), pipeline="dcn", seed=1)
        ...     ledger.runs()[0]["metrics"]
        {'val_loss': [0.5]}
    """
    root = Path(folder)
    values: dict[str, dict[int, float]] = {}
    others: dict[str, dict[int, float]] = {}
    folders = set()
    for path in sorted(root.rglob("*.tfevents.*")):
        place = path.relative_to(root).parent
        for tag, step, value in _read_scalars(path):
            if tag.startswith(_EPOCH_TAG):
                folders.add(place.parent if place.name in ("train", "validation") else place)
                name = "val_" * (place.name == "validation") + tag.removeprefix(_EPOCH_TAG)
                values.setdefault(name, {})[step] = value
            else:
                others.setdefault((place / tag).as_posix(), {})[step] = value
    # Keras also logs scalars by batch, which do not belong to epochs.
    values = values or others
    if not values or len(folders) > 1:
        raise ValueError(
            "Argument `folder` must be the log_dir of one run, with scalars in its event files. "
            f"Received: {str(root)!r} with {len(values)} scalars, of runs in "
            f"{sorted(map(str, folders))}. Import each run separately."
        )
    return ledger.append(_record_of_steps(pipeline, seed, values))


def _read_scalars(path: Path) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of each scalar of an event file, in the order written."""
    import tensorflow as tf

    records = iter(tf.data.TFRecordDataset(str(path)))
    while True:
        try:
            event = tf.compat.v1.Event.FromString(next(records).numpy())
        except (StopIteration, tf.errors.DataLossError):
            return
        for value in event.summary.value:
            if value.HasField("simple_value"):
                yield value.tag, event.step, float(value.simple_value)
            elif value.HasField("tensor"):
                array = tf.make_ndarray(value.tensor)
                if array.ndim == 0 and array.dtype.kind in "fiu":
                    yield value.tag, event.step, float(array)


def _record_of_steps(
    pipeline: str, seed: int, values: Mapping[str, Mapping[int, float]]
) -> dict[str, Any]:
    """A record whose epochs are the steps with a value of any metric."""
    epochs = sorted({step for steps in values.values() for step in steps})
    metrics = {name: [steps.get(epoch) for epoch in epochs] for name, steps in values.items()}
    return _record(pipeline, seed, epochs, metrics)


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


def _read_table(path: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """The header of a CSV file; line number → column → cell."""
    # Lift the reader's limit, so that an error can name the column of a long cell.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            rows = {}
            for row in reader:
                if row:
                    rows[reader.line_num] = row
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"Argument `path` must be a CSV file in UTF-8. Received: {str(path)!r} ({error})."
        ) from error
    finally:
        csv.field_size_limit(limit)
    header = rows.pop(next(iter(rows))) if rows else []
    if twice := [name for name in header if header.count(name) > 1]:
        raise ValueError(
            f"The columns of a CSV file must have distinct names. Received: {str(path)!r} with "
            f"several columns {twice[0]!r}."
        )
    for number, row in rows.items():
        if len(row) != len(header):
            raise ValueError(
                f"Each line must have a cell for each of the {len(header)} columns. Received: "
                f"{len(row)} cells in line {number} of {str(path)!r}. Leave missing values empty."
            )
    return header, {number: dict(zip(header, row, strict=True)) for number, row in rows.items()}


def _number(cell: _Cell) -> float:
    try:
        return float(cell.text)
    except ValueError as error:
        raise ValueError(
            f"A cell must be a number. Received: {_shown(cell.text)} in {cell.place}. Leave "
            "missing values empty, and remove columns of text."
        ) from error


def _integer(cell: _Cell) -> int:
    """The exact whole number; a float could not tell numbers above 2⁵³ apart."""
    try:
        value = Decimal(cell.text)
        # The size first: Python would write out all digits of 1e999999999.
        if value.is_finite() and value.adjusted() < _MAX_DIGITS and value == int(value):
            return int(value)
    except ArithmeticError:
        pass
    raise ValueError(
        f"A seed or an epoch must be an integer of at most {_MAX_DIGITS} digits. Received: "
        f"{_shown(cell.text)} in {cell.place}."
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…") + (
        f" ({len(text):,} characters)" if len(text) > 40 else ""
    )
