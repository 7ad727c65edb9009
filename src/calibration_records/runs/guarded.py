"""Access to a ledger during training: errors become warnings, so that training continues."""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

from calibration_records._warn import warn
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.run_record import RunRecord


def read_runs(ledger: Ledger, pipeline: str) -> list[dict[str, Any]]:
    """The readable runs of a pipeline."""
    try:
        return ledger.runs(pipeline, skip_damaged=True)
    except OSError as error:
        warn(
            f"{_describe_failure(ledger, error)} Training continues without statistics of "
            "earlier runs."
        )
        return []


def begin_run(ledger: Ledger, record: RunRecord) -> str | None:
    """Records that a run has started; returns `None` if the ledger cannot be written."""
    try:
        return ledger.append(record)
    except OSError as error:
        warn(
            f"{_describe_failure(ledger, error)} Training continues, and the run is recorded at "
            "its end."
        )
        return None


def end_run(ledger: Ledger, run_id: str | None, record: RunRecord) -> None:
    """Records the complete run in the ledger, or with a warning in a temporary folder."""
    try:
        if run_id is None:
            ledger.append(record)
        else:
            ledger.finish(run_id, record)
    except (OSError, ValueError) as error:
        where = "nowhere else: its metrics are in the history that `fit` returns"
        with contextlib.suppress(OSError):
            refuge = Ledger(tempfile.mkdtemp(prefix="keras-calibration-runs-"))
            where = f"{refuge.path / refuge.append(record)!s}.json: copy it to the ledger"
        warn(f"{_describe_failure(ledger, error)} The run is recorded in {where}.")


def _describe_failure(ledger: Ledger, error: Exception) -> str:
    return f"Cannot use the ledger {str(ledger.path)!r} ({error})."
