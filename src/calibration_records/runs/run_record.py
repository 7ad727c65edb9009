"""The schema of a run's record: validation, and conversion to and from JSON."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

from calibration_records._check import instance, refused
from calibration_records.runs.metric_names import DIRECTIONS

RunRecord: TypeAlias = Mapping[str, Any]
"""The record of a run in a ledger; see `Ledger` for its fields."""

STATUSES = ("started", "finished", "diverged")
# The `kept_epoch` of a run that kept its last weights: the last measured epoch of each metric.
LAST = "last"

_REQUIRED = ("pipeline", "seed", "status")
# Default values.
_OPTIONAL: dict[str, Any] = {
    **{"epochs": [], "metrics": {}, "directions": {}, "versions": {}, "seeds": {}},
    **dict.fromkeys(("kept_epoch", "initial_weights", "backend", "configuration", "num_rows")),
    "training": None,
}
# What each field must be.
_FORMS = {
    "pipeline": "a non-empty string",
    "seed": "an int",
    "status": f"one of {STATUSES}",
    "epochs": "a strictly increasing list of ints of at least 0",
    "kept_epoch": f"one of the epochs, {LAST!r} or None",
    "metrics": "a dict from the metric's name to a list with one float for each epoch",
    "directions": f"a dict from the metric's name to one of {DIRECTIONS}",
    "versions": "a dict from the package's name to its version",
    "seeds": "a dict from 'initialization', 'order' or another role to an int",
    "num_rows": "a number of rows or None",
    "training": "a dict or None",
}


def validate_record(record: RunRecord) -> dict[str, Any]:
    """Checks a record against the schema of `Ledger` and fills in the defaults.

    Example:
        >>> validate_record({"pipeline": "deepfm", "seed": 7, "status": "started"})["metrics"]
        {}
    """
    instance("record", record, Mapping, "a dict with the fields of a run")
    missing = [name for name in _REQUIRED if name not in record]
    unknown = [name for name in record if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        raise ValueError(
            f"A record must have the fields {_REQUIRED} and may have {[*_OPTIONAL]}. Received: "
            f"{[*record]}. Add {missing} and remove {unknown}."
        )
    record = {**dict.fromkeys(_REQUIRED), **_OPTIONAL, **record}
    _check_fields(record)
    plain = {name: value for name, value in record.items() if name != "metrics"}
    return {
        **{name: _convert_to_json(name, value) for name, value in plain.items()},
        "metrics": _convert_metrics(record["metrics"], len(record["epochs"])),
    }


def to_json(header: Mapping[str, Any], record: RunRecord) -> str:
    """A validated record as ASCII text, with NaN and infinity as strings.

    Example:
        >>> record = {"metrics": {"loss": [0.5, math.inf]}}
        >>> to_json({"run_id": "1"}, record)
        '{"run_id": "1", "metrics": {"loss": [0.5, "inf"]}}'
    """
    metrics = {
        name: [v if v is None or math.isfinite(v) else str(v) for v in values]
        for name, values in record["metrics"].items()
    }
    return json.dumps({**header, **record, "metrics": metrics}, allow_nan=False)


def from_json(text: bytes, origin: str) -> dict[str, Any]:
    """The record in the text of a file; `origin` names the file in error messages."""
    try:
        content = json.loads(text)
        header = {name: content.pop(name) for name in ("run_id", "created")}
        if not all(isinstance(value, str) for value in header.values()):
            raise TypeError(f"{header} are not strings")
        content["metrics"] = {
            name: [float(value) if isinstance(value, str) else value for value in values]
            for name, values in content["metrics"].items()
        }
        return {**header, **validate_record(content)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            "Every *.json file in the folder of a ledger must be the record of a run. Received: "
            f"{origin!r} ({error}). Move damaged or other files to another folder."
        ) from error


def _check_fields(record: RunRecord) -> None:
    """Refuses the first field that is not of the form of the schema."""
    epochs = record["epochs"]
    are_epochs = isinstance(epochs, list) and all(_is_integer(epoch, 0) for epoch in epochs)
    is_valid = {
        "pipeline": isinstance(record["pipeline"], str) and record["pipeline"] != "",
        "seed": _is_integer(record["seed"]),
        "status": record["status"] in STATUSES,
        "epochs": are_epochs and epochs == sorted(set(epochs)),
        "kept_epoch": are_epochs and record["kept_epoch"] in (None, LAST, *epochs),
        "metrics": isinstance(record["metrics"], Mapping),
        "directions": isinstance(record["directions"], Mapping)
        and all(direction in DIRECTIONS for direction in record["directions"].values()),
        "versions": isinstance(record["versions"], Mapping),
        "seeds": isinstance(record["seeds"], Mapping)
        and all(map(_is_integer, record["seeds"].values())),
        "num_rows": record["num_rows"] is None or _is_integer(record["num_rows"], 0),
        "training": isinstance(record["training"], Mapping | None),
    }
    for name, valid in is_valid.items():
        if not valid:
            raise refused(name, _FORMS[name], record[name])


def _is_integer(value: Any, least: float = -math.inf) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _convert_metrics(metrics: Mapping[str, Any], num_epochs: int) -> dict[str, list[float | None]]:
    plain: dict[str, list[float | None]] = {}
    for name, values in metrics.items():
        # The exact type first: this runs for every number of a ledger.
        are_numbers = (
            isinstance(values, list)
            and len(values) == num_epochs
            and all(type(v) is float or v is None or isinstance(v, Real) for v in values)
        )
        if not isinstance(name, str) or not are_numbers:
            raise refused(
                "metrics",
                _FORMS["metrics"],
                {name: values},
                f"There are {num_epochs} epochs. Pass None for missing values.",
            )
        plain[name] = [None if value is None else float(value) for value in values]
    return plain


def _convert_to_json(name: str, value: object) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=operator.index))
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(
            name,
            "of JSON values, with finite numbers",
            value,
            f"Convert other values, for example arrays with .tolist(): {error}.",
        ) from error
