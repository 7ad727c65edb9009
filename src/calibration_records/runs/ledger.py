"""A folder of training runs, one JSON file a run."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibration_records._check import one_of, refused
from calibration_records._files import sync, write_atomically
from calibration_records._warn import warn
from calibration_records.runs.run_record import (
    STATUSES,
    RunRecord,
    from_json,
    to_json,
    validate_record,
)

# Names that JSON has in one form only, without escapes.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ .:+-]+")


class Ledger:
    """An append-only folder of training runs, safe for many writing processes.

    Each run is one JSON file, written to a temporary file, flushed to disk and renamed. Readers
    see complete records only, and a killed process loses at most its current run. No two processes
    write the same file, so no lock is needed.

    `append` a run with the status `"started"` when training begins and `finish` it at the end,
    under the same run id. A run that died in between stays `"started"` and is counted as
    unfinished. Other records are never replaced.

    A record is a dict of JSON values:

    - `pipeline` (required): non-empty string; the runs of a pipeline differ only in their seed
    - `seed` (required): int
    - `status` (required): `"started"`, `"finished"`, or `"diverged"` (ended with values not finite)
    - `epochs`: epochs of the run, strictly increasing ints from 0
    - `metrics`: metric name → list with a float for each epoch, or `None` if not measured
    - `kept_epoch`: epoch whose weights the model has after training, or `"last"`; `None` if
      unknown: comparisons then use the last
    - `directions`: metric name → `"min"` or `"max"`, if known
    - `initial_weights`: hash of the weights before training, a string, or `None`
    - `backend`: name of the Keras backend, or `None`
    - `versions`: package name → version string, or `None` if not installed
    - `configuration`: any JSON value
    - `seeds`: role → int, for separate seeds: `"initialization"`, `"order"`, `"dropout"`,
      `"augmentation"`
    - `num_rows`: number of held-out rows, or `None`
    - `training`: hashes of model, settings and rows by which `seeds.train` recognizes its runs, and
      its engine; or `None`
    - `run_id`, `created`: set by the ledger; `created` is ISO 8601 in UTC

    Metrics may be NaN or infinite: the file stores them as the strings `"nan"`, `"inf"` and
    `"-inf"`, and `runs` returns floats. Files are named by run id, which sorts by time. The bias
    that a calibrated loss fitted is a metric with the suffix `_bias`, for example
    `val_calibrated_log_loss_bias`.

    Args:
        path: Folder of the ledger, created by the first `append`. Files other than `*.json` are
            ignored. A relative path is one from the program's folder at this moment.

    Raises:
        ValueError: `path` is no path, not that of a folder, or has too long a name.

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
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692, which compares
        pipelines by many runs of each.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # It is an argument of many names, so that the message has none. No file system has names
        # of more than 255 bytes, and asking for one is an error.
        if (
            not isinstance(path, str | os.PathLike)
            or b"\0" in os.fsencode(path)
            or any(len(os.fsencode(part)) > 255 for part in Path(path).parts)
            or (Path(path).exists() and not Path(path).is_dir())
        ):
            raise ValueError(
                "A ledger must be the path of a folder, or one where a folder can be created. "
                f"Received: {path!r}."
            )
        # The program may change its folder.
        self.path = Path(path).absolute()

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        path: str | os.PathLike[str],
        *,
        directions: Mapping[str, str] | None = None,
    ) -> Ledger:
        """Adds the runs of a data frame, for example from another tool, to the ledger of a folder.

        Each row is an epoch of a run, and all rows with the same pipeline and seed are one finished
        run. Without a column `epoch`, each row is a run. All other columns are metrics.

        Args:
            frame: A pandas or Polars data frame, or an Arrow table, with the columns `pipeline` and
                `seed`, optionally `epoch`, and metrics with a finite number in each row.
            path: Folder of the ledger, created if there is none.
            directions: Metric name → `"min"` or `"max"`, for metrics whose name does not tell.

        Returns:
            The ledger.

        Raises:
            ValueError: A column is missing, repeated or not numeric; a value is not finite; a run
                is in the frame twice, or in the ledger already; a direction is unknown. Nothing is
                written.

        Example:
            >>> import tempfile
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"pipeline": "dcn", "seed": [1, 2], "val_loss": [0.5, 0.25]})
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ledger = Ledger.from_frame(frame, folder)
            ...     [run["metrics"] for run in ledger.runs()]
            [{'val_loss': [0.5]}, {'val_loss': [0.25]}]
        """
        # Imported late: it loads NumPy.
        from calibration_records.runs.frame_records import frame_records

        ledger = cls(path)
        records = frame_records(frame, directions)
        recorded = {(run["pipeline"], run["seed"]) for run in ledger.runs()}
        if repeated := [run for run in records if (run["pipeline"], run["seed"]) in recorded]:
            raise ValueError(
                "Argument `frame` must hold runs that the ledger does not have. Received: "
                f"pipeline={repeated[0]['pipeline']!r}, seed={repeated[0]['seed']}."
            )
        for record in records:
            ledger.append(record)
        return ledger

    def append(self, record: RunRecord) -> str:
        """Adds a run; when this returns, the record is on disk.

        Args:
            record: A record of the schema above, without the fields that the ledger sets.

        Returns:
            The run id.

        Raises:
            ValueError: The record violates the schema. Nothing is written.
        """
        record = validate_record(record)
        now = datetime.now(UTC)
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            sync(self.path.parent)
        run_id = f"{now:%Y%m%dT%H%M%S%fZ}-{uuid.uuid4().hex}"
        self._write(run_id, now.isoformat(), record)
        return run_id

    def finish(self, run_id: str, record: RunRecord) -> None:
        """Atomically replaces the record of a run whose status is `"started"`.

        Args:
            run_id: The result of `append` for the run.
            record: The complete record, with another status than `"started"`.

        Raises:
            ValueError: The record violates the schema or has the status `"started"`; the ledger
                has no such run, or of another pipeline or seed, or it is finished already. Nothing
                is written.
        """
        record = validate_record(record)
        if record["status"] == "started":
            raise refused("status", f"one of {STATUSES[1:]}", "started")
        path = self._name_file(run_id)
        started = from_json(path.read_bytes(), str(path)) if path.is_file() else None
        if started is None or started["status"] != "started":
            raise refused(
                "run_id",
                f"a run with status='started' of the ledger {str(self.path)!r}",
                run_id,
                "Use `append` for a new run.",
            )
        if (own := (started["pipeline"], started["seed"])) != (record["pipeline"], record["seed"]):
            raise refused("record", f"of the run's pipeline and seed, {own}", record)
        self._write(run_id, started["created"], record)

    def runs(
        self, pipeline: str | None = None, *, status: str | None = None, skip_damaged: bool = False
    ) -> list[dict[str, Any]]:
        """Reads the runs in the order in which they were appended.

        Args:
            pipeline: Read only the runs of this pipeline; `None` for all.
            status: Read only the runs with this status; `None` for all.
            skip_damaged: Whether invalid files are skipped with a warning instead of an error.

        Returns:
            A list of records, which the caller may change.

        Raises:
            ValueError: `status` is unknown; a `*.json` file in the folder that may be of the
                pipeline is damaged or is not a record.

        Warns:
            UserWarning: Files were skipped, with `skip_damaged=True`.
        """
        one_of("status", status, (*STATUSES, None))
        damaged: list[Exception] = []
        records = []
        for path in self._list_files():
            try:
                text = path.read_bytes()
                # Each new run reads the earlier ones. Parsing those of all pipelines would take
                # longer than a small training.
                record = None if _is_of_another(text, pipeline) else from_json(text, str(path))
            except (ValueError, OSError) as error:
                if not skip_damaged:
                    raise
                damaged.append(error)
            else:
                if record and pipeline in (None, record["pipeline"]):
                    records += [record] if status in (None, record["status"]) else []
        if damaged:
            warn(f"Skipped {len(damaged)} invalid files of a ledger. The first: {damaged[0]}")
        return records

    def __len__(self) -> int:
        return len(self._list_files())

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, num_runs={len(self)})"

    def _name_file(self, run_id: str) -> Path:
        if not isinstance(run_id, str) or run_id != Path(run_id).name:
            raise refused("run_id", "a result of `append`, a name without folders", run_id)
        return self.path / f"{run_id}.json"

    def _list_files(self) -> list[Path]:
        try:
            # Folders and pipes with such a name are not records.
            with os.scandir(self.path) as entries:
                names = [e.name for e in entries if e.name.endswith(".json") and e.is_file()]
        except FileNotFoundError:
            return []
        return [self.path / name for name in sorted(names)]

    def _write(self, run_id: str, created: str, record: dict[str, Any]) -> None:
        header = {"run_id": run_id, "created": created}
        write_atomically(self._name_file(run_id), to_json(header, record).encode("ascii"))
        sync(self.path)


def _is_of_another(text: bytes, pipeline: str | None) -> bool:
    """Whether a complete record belongs to another pipeline: it does not contain this name."""
    is_plain = pipeline is not None and _PLAIN_NAME.fullmatch(pipeline) is not None
    return is_plain and text.rstrip().endswith(b"}") and f'"{pipeline}"'.encode() not in text
