"""The durable memory of runs: a folder with one JSON file for each."""

import json
import math
import os
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
STATUSES = ("started", "finished", "diverged")
# What a seed can be given to, each apart.
SEED_ROLES = ("initialization", "order", "dropout", "augmentation")
# From here on the folder has an index; below, reading the files is as fast.
_MIN_INDEXED = 500

_REQUIRED = ("pipeline", "seed", "status")
# What a record holds that does not say otherwise.
_OPTIONAL: dict[str, Any] = {
    "epochs": [],
    "metrics": {},
    "initial_weights": None,
    "backend": None,
    "versions": {},
    "configuration": None,
    "family": None,
    "seeds": {},
    "num_rows": None,
    "row_losses": None,
}


class Ledger:
    """An append-only folder of runs, safe to write from many processes at once.

    Each run is one JSON file. It is written to a temporary file in the same folder, flushed to the
    disk and renamed, so that a reader finds a whole record or none: a process killed at any moment
    loses at most its own run in flight, and the next reader has nothing to repair. No two
    processes write to the same file, hence no lock is needed.

    A run that takes long is recorded twice under one run id: `append` with the status `"started"`,
    then `finish`, which replaces that record. A run that died in between stays in the ledger as
    `"started"`, to be seen and counted. No other record is ever replaced.

    A record is a dict of JSON values, by this schema, version 1 (* must be given):

    | field | meaning |
    |---|---|
    | `pipeline`* | non-empty string: what is trained, and how; its runs differ in their seed only |
    | `seed`* | int |
    | `status`* | `"started"`, `"finished"`, or `"diverged"` (to its end, with values not finite) |
    | `epochs` | strictly increasing list of the epochs run, ints from 0 |
    | `metrics` | metric name → list of floats, one for each of `epochs`; `None`: not measured |
    | `initial_weights` | hash of the weights before training, a string, or `None` |
    | `backend` | name of the Keras backend, or `None` |
    | `versions` | package name → version string, or `None` where it is not installed |
    | `configuration` | any JSON value: what else tells this run from others |
    | `family` | what the pipeline is a variant of, a string, or `None`; its noise informs others |
    | `seeds` | role → int, where roles have seeds of their own: `"initialization"`, `"order"`, |
    | | `"dropout"`, `"augmentation"` |
    | `num_rows` | number of rows evaluated, or `None` |
    | `row_losses` | what `write_row_losses` returned for the held-out rows, or `None` |
    | `schema_version`, `run_id`, `created` | given by the ledger; `created` is ISO 8601 in UTC |

    Metrics may be NaN or infinite. JSON knows no such numbers, so the file has the strings `"NaN"`,
    `"Infinity"` and `"-Infinity"` in their place, and `runs` gives floats back. The name of a file
    is its run id: the time in UTC, then a random number, so that the names sort by time. Of the
    correction that was fitted, the metrics may hold the bias and the calibration gain under names
    of their own, as `val_calibrated_log_loss_bias` and `val_calibration_gain`.

    A folder of many runs has a file `index.cache`, which reading makes and renews; it may be
    deleted at any time. Losses of single rows lie in the folder `rows`.

    Args:
        path: the ledger's folder. It is made when the first run is appended; until then the ledger
            is empty. Files in it that are not `*.json`, such as what a killed process left behind,
            are not looked at.

    Raises:
        ValueError: `path` is not a folder.

    Example:
        >>> import tempfile
        >>> from keras_calibration.seeds import Ledger
        >>> folder = tempfile.TemporaryDirectory()
        >>> ledger = Ledger(folder.name)
        >>> run_id = ledger.append({"pipeline": "deepfm", "seed": 7, "status": "started"})
        >>> ledger.finish(run_id, {"pipeline": "deepfm", "seed": 7, "status": "finished",
        ...                        "epochs": [0, 1], "metrics": {"val_loss": [0.5, 0.25]}})
        >>> [run["metrics"]["val_loss"] for run in ledger.runs("deepfm", status="finished")]
        [[0.5, 0.25]]
        >>> len(ledger)
        1
        >>> folder.cleanup()

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692, for the comparison
        of pipelines by many runs of each.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(
                f"Received path={str(self.path)!r}, which is a file; expected a folder, or a path "
                "at which one can be made; give the ledger a folder of its own."
            )

    def append(self, record: Mapping[str, Any]) -> str:
        """Adds a run, durably; when this returns, the record is on the disk.

        Args:
            record: the run, as the class describes it, without what the ledger gives.

        Returns:
            The run id.

        Raises:
            ValueError: the record is not of the schema. Nothing is written then.
        """
        record = validate_record(record)
        now = datetime.now(UTC)
        run_id = f"{now:%Y%m%dT%H%M%S%fZ}-{uuid.uuid4().hex}"
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            _sync_folder(self.path.parent)
        self._write(run_id, now.isoformat(), record)
        return run_id

    def finish(self, run_id: str, record: Mapping[str, Any]) -> None:
        """Replaces the record of a run that had only started, atomically.

        Args:
            run_id: what `append` returned for the run.
            record: the whole run, as the class describes it; its status is not `"started"`.

        Raises:
            ValueError: the record is not of the schema, or its status is `"started"`; the ledger
                has no such run, or it is finished already. Nothing is written then.
        """
        record = validate_record(record)
        if record["status"] == "started":
            raise ValueError(
                "Received a record with status='started' to finish a run; expected one of "
                f"{STATUSES[1:]}; to record another run, use `append`."
            )
        path = self._file(run_id)
        if not path.is_file():
            raise ValueError(
                f"Received run_id={run_id!r}, of which {str(self.path)!r} has no record; expected "
                "what `append` returned for the run; to record a new run, use `append`."
            )
        started = _read(path)
        if started["status"] != "started":
            raise ValueError(
                f"Received run_id={run_id!r}, a run with status={started['status']!r}; expected "
                "one that had only started; records are never replaced, `append` a new run."
            )
        self._write(run_id, started["created"], record)

    def runs(self, pipeline: str | None = None, status: str | None = None) -> list[dict[str, Any]]:
        """Reads the runs, sorted by the time at which they were appended.

        Args:
            pipeline: only the runs of this pipeline; `None` for all.
            status: only the runs with this status; `None` for all.

        Returns:
            The records, as the class describes them, each a dict of its own.

        Raises:
            ValueError: `status` is none of the statuses; a `*.json` file in the folder is damaged,
                is no record, or was written by a newer version of this package.
        """
        if status not in (None, *STATUSES):
            raise ValueError(
                f"Received status={status!r}; expected one of {STATUSES}; or None for all."
            )
        paths = self._files()
        if len(paths) < _MIN_INDEXED:
            records = [_read(path) for path in paths]
        else:
            # Imported when used: a process that only writes needs this file alone.
            from keras_calibration.seeds.ledger_index import read_indexed

            records = read_indexed(self.path, paths, _read)
        return [
            record
            for record in records
            if pipeline in (None, record["pipeline"]) and status in (None, record["status"])
        ]

    def write_row_losses(self, losses: Any, row_ids: Any) -> dict[str, Any]:
        """Stores the loss of each held-out row, durably, before the run's record refers to it.

        Args:
            losses: `(num_rows,)`, stored as float32.
            row_ids: `(num_rows,)`, ints or strings that name the rows; only a hash is stored, by
                which runs on the same rows in the same order know each other.

        Returns:
            What the record of the run has as `row_losses`.

        Raises:
            ValueError: the two are not one-dimensional and of one length.
        """
        from keras_calibration.seeds.row_losses import write_row_losses

        return write_row_losses(self.path, losses, row_ids)

    def read_row_losses(self, run: Mapping[str, Any]) -> Any:
        """The losses of the held-out rows of a run, float32 `(num_rows,)`.

        Args:
            run: a record, as `runs` gives it.

        Raises:
            ValueError: the run has none, or their file is gone.
        """
        from keras_calibration.seeds.row_losses import read_row_losses

        return read_row_losses(self.path, run)

    def __len__(self) -> int:
        return len(self._files())

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, num_runs={len(self)})"

    def _file(self, run_id: str) -> Path:
        return self.path / f"{run_id}.json"

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("*.json"))

    def _write(self, run_id: str, created: str, record: dict[str, Any]) -> None:
        metrics = {
            name: [_encode_float(value) for value in values]
            for name, values in record["metrics"].items()
        }
        header = {"schema_version": SCHEMA_VERSION, "run_id": run_id, "created": created}
        text = json.dumps({**header, **record, "metrics": metrics}, allow_nan=False)
        path = self._file(run_id)
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            # Still there only if the disk refused it.
            temporary.unlink(missing_ok=True)
        _sync_folder(self.path)


def validate_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Checks a run against the ledger's schema and fills in what it leaves out.

    Args:
        record: the run, as `Ledger` describes it, without what the ledger gives.

    Returns:
        A record with every field of the schema, of plain Python values throughout.

    Raises:
        ValueError: a field is missing, unknown or not of the form that the schema gives it.

    Example:
        >>> validate_record({"pipeline": "deepfm", "seed": 7, "status": "started"})["metrics"]
        {}
    """
    record = _check_record(record)
    # Copies, which at the same time show that JSON can hold them.
    free = ("versions", "configuration", "row_losses")
    return {**record, **{name: _plain_json(name, record[name]) for name in free}}


def _check_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """As `validate_record`, of what comes from JSON and so need not be tried with it."""
    missing = [name for name in _REQUIRED if name not in record]
    unknown = [name for name in record if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        raise ValueError(
            f"Received a record with the fields {list(record)}; expected {list(_REQUIRED)} and, if "
            f"wanted, {list(_OPTIONAL)}; add {missing} and take away {unknown}."
        )
    record = {**dict.fromkeys(_REQUIRED), **_OPTIONAL, **record}
    for name, (is_valid, expected, mend) in _FORMS.items():
        if not is_valid(record[name]):
            raise ValueError(f"Received {name}={record[name]!r}; expected {expected}; {mend}.")
    return {
        **record,
        "seed": int(record["seed"]),
        "epochs": [int(epoch) for epoch in record["epochs"]],
        "metrics": _plain_metrics(record["metrics"], len(record["epochs"])),
        "versions": dict(record["versions"]),
        "seeds": {role: int(seed) for role, seed in record["seeds"].items()},
        "num_rows": None if record["num_rows"] is None else int(record["num_rows"]),
    }


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_optional_string(value: object) -> bool:
    return isinstance(value, str | None)


def _is_optional_count(value: Any) -> bool:
    return value is None or (_is_integer(value) and value >= 0)


def _is_seeds(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        role in SEED_ROLES and _is_integer(seed) for role, seed in value.items()
    )


def _is_epochs(value: object) -> bool:
    return (
        isinstance(value, list)
        and all(_is_integer(epoch) and epoch >= 0 for epoch in value)
        and value == sorted(set(value))
    )


# What each field must satisfy; that in words; what to do where it does not.
_FORMS: dict[str, tuple[Callable[[object], bool], str, str]] = {
    "pipeline": (
        lambda value: isinstance(value, str) and value != "",
        "a non-empty string",
        "name what is trained, as in pipeline='deepfm'",
    ),
    "seed": (
        _is_integer,
        "an int",
        "pass the number that was given to keras.utils.set_random_seed",
    ),
    "status": (
        lambda value: value in STATUSES,
        f"one of {STATUSES}",
        "a run that is still going has 'started', one that came to its end one of the others",
    ),
    "epochs": (
        _is_epochs,
        "a strictly increasing list of ints from 0",
        "give each epoch once, in the order of training",
    ),
    "metrics": (
        lambda value: isinstance(value, Mapping),
        "a dict from the metric's name to a list with one float for each epoch",
        "pass an empty dict where nothing was measured",
    ),
    "initial_weights": (
        _is_optional_string,
        "a string or None",
        "pass a hash of the weights as text, for example its hexdigest()",
    ),
    "backend": (
        _is_optional_string,
        "a string or None",
        "pass keras.backend.backend()",
    ),
    "versions": (
        lambda value: isinstance(value, Mapping),
        "a dict from the package's name to its version",
        "pass an empty dict where they are not known",
    ),
    "family": (_is_optional_string, "a string or None", "name what the pipeline is a variant of"),
    "seeds": (
        _is_seeds,
        f"a dict from one of {SEED_ROLES} to an int",
        "leave out the roles that follow `seed`",
    ),
    "num_rows": (
        _is_optional_count,
        "a number of rows or None",
        "pass the length of the held-out set",
    ),
    "row_losses": (
        lambda value: value is None or (isinstance(value, Mapping) and "file" in value),
        "what `Ledger.write_row_losses` returns, or None",
        "store the losses first, then append the record",
    ),
}


def _plain_metrics(metrics: Mapping[str, Any], num_epochs: int) -> dict[str, list[float | None]]:
    plain: dict[str, list[float | None]] = {}
    for name, values in metrics.items():
        if (
            not isinstance(name, str)
            or not isinstance(values, list)
            or len(values) != num_epochs
            # The exact types first: this runs for every number of a ledger.
            or not all(type(v) is float or v is None or isinstance(v, Real) for v in values)
        ):
            raise ValueError(
                f"Received metrics[{name!r}]={values!r} with {num_epochs} epochs; expected a list "
                "with one float for each epoch under the metric's name; give None for an epoch in "
                "which it was not measured."
            )
        plain[name] = [None if value is None else float(value) for value in values]
    return plain


def _plain_json(name: str, value: object) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Received {name}={value!r}, which JSON cannot hold ({error}); expected dicts with "
            "string keys, lists, strings, finite numbers, booleans and None; convert the rest, "
            "for example arrays with .tolist()."
        ) from error


def _encode_float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        version = content["schema_version"]
        record = _decode(content) if version <= SCHEMA_VERSION else None
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"Received {str(path)!r}, which is no record of a run ({error}); expected every *.json "
            "in the folder of a ledger to be one; move files that are not the ledger's, or were "
            "damaged from outside, to another folder."
        ) from error
    if record is None:
        raise ValueError(
            f"Received {str(path)!r} with schema_version={version}; expected at most "
            f"{SCHEMA_VERSION}; a newer keras-calibration wrote it: upgrade this one."
        )
    return record


def _decode(content: dict[str, Any]) -> dict[str, Any]:
    header = {name: content.pop(name) for name in ("schema_version", "run_id", "created")}
    content["metrics"] = {
        name: [float(value) if isinstance(value, str) else value for value in values]
        for name, values in content["metrics"].items()
    }
    return {**header, **_check_record(content)}


def _sync_folder(path: Path) -> None:
    # The name of a file is on the disk only when its folder is; Windows has no such call.
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
