"""A ledger that never stops the training that it records: what fails there is a warning."""

import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

from keras_calibration.ledger.ledger import Ledger


def read_runs(ledger: Ledger, pipeline: str) -> list[dict[str, Any]]:
    """The runs of a pipeline, without files that cannot be read."""
    try:
        return ledger.runs(pipeline, skip_damaged=True)
    except OSError as error:
        _warn(
            f"Cannot read the ledger {str(ledger.path)!r} ({error}). Training goes on without the "
            "statistics over earlier runs. Check the folder."
        )
        return []


def begin_run(ledger: Ledger, record: Mapping[str, Any]) -> str | None:
    """Records that a run has started; `None` where the ledger cannot be written."""
    try:
        return ledger.append(record)
    except OSError as error:
        _warn(
            f"Cannot write to the ledger {str(ledger.path)!r} ({error}). Training goes on, and the "
            "run will be recorded when it ends, elsewhere if need be. Make room in the folder, or "
            "correct its permissions."
        )
        return None


def end_run(ledger: Ledger, run_id: str | None, record: Mapping[str, Any]) -> None:
    """Records the whole run: in the ledger, or else in a folder of its own, with a warning."""
    try:
        if run_id is None:
            ledger.append(record)
        else:
            ledger.finish(run_id, record)
        return
    except (OSError, ValueError) as error:
        reason = error
    try:
        # Its folder may have been deleted, and is made anew.
        refuge, run_id = ledger, ledger.append(record)
    except (OSError, ValueError):
        try:
            refuge = Ledger(tempfile.mkdtemp(prefix="keras-calibration-runs-"))
            run_id = refuge.append(record)
        except (OSError, ValueError) as error:
            _warn(
                f"Cannot record the run in the ledger {str(ledger.path)!r} ({reason}), nor in a "
                f"temporary folder ({error}). Its metrics are in what `fit` returns."
            )
            return
    _warn(
        f"Cannot finish the record of the run in the ledger {str(ledger.path)!r} ({reason}). The "
        f"whole run is recorded in {refuge.path / run_id!s}.json; unless it lies there, copy "
        "the file into the ledger's folder."
    )


def _warn(message: str) -> None:
    # Shown where `fit` was called as far as Python can tell: the frames between are Keras'.
    warnings.warn(message, UserWarning, stacklevel=3)
