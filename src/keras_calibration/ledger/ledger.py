"""The durable memory of runs: a folder with one JSON file for each."""

import contextlib
import os
import time
import uuid
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keras_calibration.ledger.run_record import STATUSES, from_json, to_json, validate_record

# From here on the folder has an index; below, reading the files is as fast.
_MIN_INDEXED = 500
# What a killed process left behind; no write takes as long, not even on a machine set wrong.
_STALE_SECONDS = 24 * 3600


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
    | `kept_epoch` | the one of `epochs` whose weights the run kept, as the best; `None`: the last |
    | `directions` | metric name → `"min"` or `"max"`, where it is known which is better |
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
            is empty. Files in it that are not `*.json` are not looked at. Temporary files that a
            killed process left behind are deleted by a later `append`, a day after.

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
        self._is_swept = False

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
        self._sweep()
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

    def runs(
        self,
        pipeline: str | None = None,
        status: str | None = None,
        skip_damaged: bool = False,
    ) -> list[dict[str, Any]]:
        """Reads the runs, sorted by the time at which they were appended.

        Args:
            pipeline: only the runs of this pipeline; `None` for all.
            status: only the runs with this status; `None` for all.
            skip_damaged: whether to warn of files that are no records, rather than to raise.

        Returns:
            The records, as the class describes them, each a dict of its own.

        Raises:
            ValueError: `status` is none of the statuses; a `*.json` file in the folder is damaged,
                is no record, or was written by a newer version of this package.

        Warns:
            UserWarning: files were left out, with `skip_damaged=True`.
        """
        if status not in (None, *STATUSES):
            raise ValueError(
                f"Received status={status!r}; expected one of {STATUSES}; or None for all."
            )
        damaged: list[Exception] = []
        records = self._read_all(damaged if skip_damaged else None)
        if damaged:
            warnings.warn(
                f"Left out {len(damaged)} files of the ledger {str(self.path)!r}, the first because"
                f": {damaged[0]}",
                stacklevel=2,
            )
        return [
            record
            for record in records
            if record is not None
            and pipeline in (None, record["pipeline"])
            and status in (None, record["status"])
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
        from keras_calibration.ledger.row_losses import write_row_losses

        reference = write_row_losses(self.path, losses, row_ids)
        for folder in (self.path / "rows", self.path):
            _sync_folder(folder)
        return reference

    def read_row_losses(self, run: Mapping[str, Any]) -> Any:
        """The losses of the held-out rows of a run, float32 `(num_rows,)`.

        Args:
            run: a record, as `runs` gives it.

        Raises:
            ValueError: the run has none, or their file is gone.
        """
        from keras_calibration.ledger.row_losses import read_row_losses

        return read_row_losses(self.path, run)

    def __len__(self) -> int:
        return len(self._files())

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, num_runs={len(self)})"

    def _file(self, run_id: str) -> Path:
        if run_id != Path(run_id).name:
            raise ValueError(
                f"Received run_id={run_id!r}; expected what `append` returned for the run, a name "
                "without folders."
            )
        return self.path / f"{run_id}.json"

    def _files(self) -> list[Path]:
        try:
            # Files alone: a folder or a pipe of that name holds no record.
            with os.scandir(self.path) as entries:
                names = [e.name for e in entries if e.name.endswith(".json") and e.is_file()]
        except FileNotFoundError:
            return []
        return [self.path / name for name in sorted(names)]

    def _read_all(self, damaged: list[Exception] | None) -> list[dict[str, Any] | None]:
        """The records; where `damaged` is a list, errors go there and `None` stands for them."""

        def read(path: Path) -> dict[str, Any] | None:
            try:
                return _read(path)
            except (ValueError, OSError) as error:
                if damaged is None:
                    raise
                damaged.append(error)
                return None

        paths = self._files()
        if len(paths) < _MIN_INDEXED:
            return [read(path) for path in paths]
        # Imported when used: a process that only writes needs no index.
        from keras_calibration.ledger.index import read_indexed

        return read_indexed(self.path, paths, read)

    def _sweep(self) -> None:
        """Deletes temporary files of processes that were killed, once in the life of the object."""
        if self._is_swept:
            return
        self._is_swept = True
        for folder in (self.path, self.path / "rows"):
            for path in folder.glob("*.tmp"):
                # Another process may sweep too.
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                        path.unlink()

    def _write(self, run_id: str, created: str, record: dict[str, Any]) -> None:
        text = to_json({"run_id": run_id, "created": created}, record)
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


def _read(path: Path) -> dict[str, Any]:
    return from_json(path.read_bytes(), str(path))


def _sync_folder(path: Path) -> None:
    # The name of a file is on the disk only when its folder is; Windows has no such call.
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
