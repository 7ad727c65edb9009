"""Access to a ledger during training: errors become warnings, so that training continues."""

from __future__ import annotations

import tempfile
from typing import Any

from calibration_records._warn import warn
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.run_record import RunRecord
from calibration_records.runs.trainings import write_training


def read_runs(ledger: Ledger, pipeline: str) -> list[dict[str, Any]]:
    """The readable runs of a pipeline."""
    try:
        return ledger.runs(pipeline, skip_damaged=True)
    except OSError as error:
        warn(
            f"Cannot read the ledger {str(ledger.path)!r} ({error}). Training continues without "
            "statistics of earlier runs. Check the folder."
        )
        return []


def begin_run(ledger: Ledger, record: RunRecord) -> str | None:
    """Records that a run has started; returns `None` if the ledger cannot be written."""
    try:
        return ledger.append(record)
    except OSError as error:
        warn(
            f"Cannot write to the ledger {str(ledger.path)!r} ({error}). Training continues, and "
            "the run is recorded at its end, in a temporary folder if necessary. Check free space "
            "and permissions."
        )
        return None


def write_description(ledger: Ledger, description: dict[str, Any]) -> str | None:
    """Stores the description of a training; returns its file, or `None` if it cannot be written."""
    try:
        return write_training(ledger.path, description)
    except OSError:
        return None  # `begin_run` warns of it.


def end_run(ledger: Ledger, run_id: str | None, record: RunRecord) -> None:
    """Records the complete run in the ledger, or with a warning in a temporary folder."""
    try:
        if run_id is None:
            ledger.append(record)
        else:
            ledger.finish(run_id, record)
        return
    except (OSError, ValueError) as error:
        reason = error
    try:
        # The folder may have been deleted: `append` creates it again.
        refuge, run_id = ledger, ledger.append(record)
    except (OSError, ValueError):
        try:
            refuge = Ledger(tempfile.mkdtemp(prefix="keras-calibration-runs-"))
            run_id = refuge.append(record)
        except (OSError, ValueError) as error:
            warn(
                f"Cannot record the run in the ledger {str(ledger.path)!r} ({reason}), nor in a "
                f"temporary folder ({error}). Its metrics are in the history that `fit` returns."
            )
            return
    warn(
        f"Cannot finish the record of the run in the ledger {str(ledger.path)!r} ({reason}). It "
        f"is recorded in {refuge.path / run_id!s}.json. If this is another folder, copy the file "
        "to the ledger."
    )
