"""Runs that were recorded elsewhere, taken into a ledger: from CSV, TensorBoard and MLflow."""

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
# How `keras.callbacks.TensorBoard` names what it logs at the end of an epoch.
_EPOCH_TAG = "epoch_"
# Of a seed or an epoch: no seed of 64 bits has more.
_MAX_DIGITS = 20


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
    not measured. Seeds and epochs are whole numbers; `7.0`, as pandas writes them, is one too.
    Keras' `CSVLogger` writes one run a file: give its pipeline and seed here.

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
        ValueError: a column is missing or there twice, a line has more or fewer cells than the
            header, or a cell is no number, for a seed or an epoch no whole one. No run is taken
            then.

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
        raise ValueError(
            f"Received {str(path)!r} with the columns {header}; expected {missing} among them; "
            "name the columns in `columns`, or pass pipeline= and seed= for the whole file."
        )
    runs: dict[Any, list[dict[str, Any]]] = {}
    for number, line in lines.items():
        cells = {
            column: _Cell(text, f"line {number} of the column {column!r} in {str(path)!r}")
            for column, text in line.items()
        }
        name = pipeline if pipeline is not None else line[columns["pipeline"]]
        run_seed = seed if seed is not None else _integer(cells[columns["seed"]])
        single = columns["epoch"] not in header
        epoch = 0 if single else _integer(cells[columns["epoch"]])
        values = {
            column: _number(cell) if cell.text else None
            for column, cell in cells.items()
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
            name = file.relative_to(metrics_folder).as_posix()
            values[name] = _read_mlflow_metric(file)
    if not values or (seed is None and "seed" not in parameters):
        raise ValueError(
            f"Received {str(root)!r} with the metrics {list(values)} and the parameters "
            f"{list(parameters)}; expected a run with metrics and a parameter 'seed'; pass the "
            "folder of one run, and seed= where it was not logged."
        )
    run_seed = seed
    if run_seed is None:
        run_seed = _integer(_Cell(parameters["seed"], str(parameters_folder / "seed")))
    record = _record_of_steps(pipeline, run_seed, values)
    return ledger.append({**record, "configuration": parameters})


def _read_mlflow_metric(file: Path) -> dict[int, float]:
    """Step → value of a metric's file; of a step logged twice, the later counts."""
    values = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        place = f"line {number} of {str(file)!r}"
        parts = line.split()
        if len(parts) not in (0, 3):
            raise ValueError(
                f"Received {_shown(line)} in {place}; expected time, value and step, as MLflow "
                "writes them."
            )
        if parts:
            values[_integer(_Cell(parts[2], place))] = _number(_Cell(parts[1], place))
    return values


def import_tensorboard(
    ledger: Ledger, folder: str | os.PathLike[str], pipeline: str, seed: int
) -> str:
    """Takes one run of TensorBoard's event files into a ledger; TensorFlow alone reads them.

    Of what `keras.callbacks.TensorBoard` wrote, the values at the ends of epochs are taken under
    their names in the logs: `epoch_auc` becomes `auc` in the folder `train` and `val_auc` in
    `validation`. Scalars that another program wrote keep their tags, behind their folder's name
    where they lie in one, and their steps become the epochs. Where a step was logged twice, as
    after a restart, the later counts; a file cut off by a kill is taken up to there.

    Args:
        ledger: where the run goes.
        folder: `log_dir` of the run.
        pipeline: of the run.
        seed: of the run.

    Returns:
        The run id.

    Raises:
        ValueError: the folder has no event file with a scalar, or two runs lie in it.

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
        ...     _ = import_tensorboard(ledger, Path(name, "log"), "dcn", seed=1)
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
    # Beside epochs, what Keras logs has batches for steps.
    values = values or others
    if not values or len(folders) > 1:
        raise ValueError(
            f"Received {str(root)!r} with scalars of {len(values)} names, of runs in "
            f"{sorted(map(str, folders))}; expected the log_dir of one run, with event files that "
            "hold scalars; import runs one by one."
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
    """A record whose epochs are the steps at which any metric was logged."""
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


class _Cell(NamedTuple):
    """A text that should be a number, and where it stands."""

    text: str
    place: str


def _read_table(path: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """The header of a CSV file; line number → column → cell."""
    # A cell longer than Python's limit is to be named by its column: the limit is the reader's.
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
            f"Received {str(path)!r}, which is no CSV file in UTF-8 ({error}); save it as one."
        ) from error
    finally:
        csv.field_size_limit(limit)
    header = rows.pop(next(iter(rows))) if rows else []
    if twice := [name for name in header if header.count(name) > 1]:
        raise ValueError(
            f"Received {str(path)!r} with the column {twice[0]!r} more than once; expected a name "
            "of its own for each column."
        )
    for number, row in rows.items():
        if len(row) != len(header):
            raise ValueError(
                f"Received {len(row)} cells in line {number} of {str(path)!r}; expected one for "
                f"each of its {len(header)} columns; leave cells empty that were not measured."
            )
    return header, {number: dict(zip(header, row, strict=True)) for number, row in rows.items()}


def _number(cell: _Cell) -> float:
    try:
        return float(cell.text)
    except ValueError as error:
        raise ValueError(
            f"Received {_shown(cell.text)} in {cell.place}; expected a number; leave cells empty "
            "that were not measured, and take columns of text out of the file."
        ) from error


def _integer(cell: _Cell) -> int:
    """A whole number, exactly: beyond 2⁵³ a float would merge neighbours."""
    try:
        value = Decimal(cell.text)
        # The size first: of 1e999999999 Python would write out all digits.
        if value.is_finite() and value.adjusted() < _MAX_DIGITS and value == int(value):
            return int(value)
    except ArithmeticError:
        pass
    raise ValueError(
        f"Received {_shown(cell.text)} in {cell.place}; expected a whole number of at most "
        f"{_MAX_DIGITS} digits."
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…") + (
        f" ({len(text):,} characters)" if len(text) > 40 else ""
    )
