"""The schema of a run's record: validation, and conversion to and from JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

from calibration_records.runs.metric_names import DIRECTIONS

RunRecord: TypeAlias = Mapping[str, Any]
"""The record of a run in a ledger; see `Ledger` for its fields."""

SCHEMA_VERSION = 1
STATUSES = ("started", "finished", "diverged")
# A kept epoch, as far as each metric was measured.
LAST = "last"
# Parts of a run that can have separate seeds.
SEED_ROLES = ("initialization", "order", "dropout", "augmentation")

_REQUIRED = ("pipeline", "seed", "status")
# Default values.
_OPTIONAL: dict[str, Any] = {
    "epochs": [],
    "metrics": {},
    "kept_epoch": None,
    "directions": {},
    "initial_weights": None,
    "backend": None,
    "versions": {},
    "configuration": None,
    "seeds": {},
    "num_rows": None,
    "training": None,
}


def validate_record(record: RunRecord) -> dict[str, Any]:
    """Checks a record against the schema of `Ledger` and fills in the defaults.

    Example:
        >>> validate_record({"pipeline": "deepfm", "seed": 7, "status": "started"})["metrics"]
        {}
    """
    record = _check_record(record)
    # This copies the values and checks that JSON can hold them.
    free = ("versions", "configuration", "training")
    return {**record, **{name: _plain_json(name, record[name]) for name in free}}


def to_json(header: Mapping[str, Any], record: RunRecord) -> str:
    """A validated record as ASCII text, with NaN and infinity as strings.

    Example:
        >>> record = {"metrics": {"loss": [0.5, math.inf]}}
        >>> to_json({"run_id": "1"}, record)
        '{"schema_version": 1, "run_id": "1", "metrics": {"loss": [0.5, "Infinity"]}}'
    """
    metrics = {
        name: [_encode_float(value) for value in values]
        for name, values in record["metrics"].items()
    }
    content = {"schema_version": SCHEMA_VERSION, **header, **record, "metrics": metrics}
    return json.dumps(content, allow_nan=False)


def from_json(text: bytes, origin: str) -> dict[str, Any]:
    """The record in the text of a file; `origin` names the file in error messages."""
    try:
        content = json.loads(text)
        version = content["schema_version"]
        record = _decode(content) if version <= SCHEMA_VERSION else None
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ValueError(
            "Every *.json file in the folder of a ledger must be the record of a run. Received: "
            f"{origin!r} ({error}). Move damaged or other files to another folder."
        ) from error
    if record is None:
        raise ValueError(
            f"A record must have schema_version <= {SCHEMA_VERSION}. Received: {origin!r} with "
            f"schema_version={version}. Upgrade keras-calibration."
        )
    return record


def _decode(content: dict[str, Any]) -> dict[str, Any]:
    header = {name: content.pop(name) for name in ("schema_version", "run_id", "created")}
    if not (isinstance(header["run_id"], str) and isinstance(header["created"], str)):
        raise ValueError("run_id and created are not strings")
    content["metrics"] = {
        name: [float(value) if isinstance(value, str) else value for value in values]
        for name, values in content["metrics"].items()
    }
    return {**header, **_check_record(content)}


def _check_record(record: RunRecord) -> dict[str, Any]:
    """Checks like `validate_record`, without a test that JSON can hold the values."""
    missing = [name for name in _REQUIRED if name not in record]
    unknown = [name for name in record if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        raise ValueError(
            f"A record must have the fields {list(_REQUIRED)} and may have {list(_OPTIONAL)}. "
            f"Received: {list(record)}. Add {missing} and remove {unknown}."
        )
    record = {**dict.fromkeys(_REQUIRED), **_OPTIONAL, **record}
    for name, (is_valid, expected, mend) in _FORMS.items():
        if not is_valid(record[name]):
            raise ValueError(
                f"Argument `{name}` must be {expected}. Received: {name}={record[name]!r}. {mend}."
            )
    epochs, kept = [int(epoch) for epoch in record["epochs"]], record["kept_epoch"]
    if kept not in (None, LAST, *epochs):
        raise ValueError(
            f"Argument `kept_epoch` must be one of the epochs {epochs}, {LAST!r}, or None if it is "
            f"not known. Received: kept_epoch={kept!r}."
        )
    return {
        **record,
        "seed": int(record["seed"]),
        "epochs": epochs,
        "kept_epoch": kept if kept in (None, LAST) else int(kept),
        "directions": dict(record["directions"]),
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


# For each field a check, its description, and advice for invalid values.
_FORMS: dict[str, tuple[Callable[[object], bool], str, str]] = {
    "pipeline": (
        lambda value: isinstance(value, str) and value != "",
        "a non-empty string",
        "For example pipeline='deepfm'",
    ),
    "seed": (
        _is_integer,
        "an int",
        "Pass the argument of keras.utils.set_random_seed",
    ),
    "status": (
        lambda value: value in STATUSES,
        f"one of {STATUSES}",
        "Use 'started' while the run is in progress, and another status when it has ended",
    ),
    "epochs": (
        _is_epochs,
        "a strictly increasing list of ints of at least 0",
        "List each epoch once, in the order of training",
    ),
    "metrics": (
        lambda value: isinstance(value, Mapping),
        "a dict from the metric's name to a list with one float for each epoch",
        "Pass an empty dict if nothing was measured",
    ),
    "kept_epoch": (
        lambda value: _is_optional_count(value) or value == LAST,
        f"one of the epochs, {LAST!r}, or None",
        "Pass the epoch whose weights were restored or saved as the best",
    ),
    "directions": (
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(name, str) for name in value)
            and all(direction in DIRECTIONS for direction in value.values())
        ),
        f"a dict from the metric's name to one of {DIRECTIONS}",
        "Omit metrics without a direction",
    ),
    "initial_weights": (
        _is_optional_string,
        "a string or None",
        "Pass a hash of the weights, for example its hexdigest()",
    ),
    "backend": (
        _is_optional_string,
        "a string or None",
        "Pass keras.backend.backend()",
    ),
    "versions": (
        lambda value: isinstance(value, Mapping),
        "a dict from the package's name to its version",
        "Pass an empty dict if they are unknown",
    ),
    "seeds": (
        _is_seeds,
        f"a dict from one of {SEED_ROLES} to an int",
        "Omit roles without a separate seed",
    ),
    "num_rows": (
        _is_optional_count,
        "a number of rows or None",
        "Pass the size of the held-out set",
    ),
    "training": (
        lambda value: value is None or (isinstance(value, Mapping) and "file" in value),
        "what `seeds.train` has recorded, or None",
        "Omit it",
    ),
}


def _plain_metrics(metrics: Mapping[str, Any], num_epochs: int) -> dict[str, list[float | None]]:
    plain: dict[str, list[float | None]] = {}
    for name, values in metrics.items():
        if (
            not isinstance(name, str)
            or not isinstance(values, list)
            or len(values) != num_epochs
            # The exact type first: this runs for every number of a ledger.
            or not all(type(v) is float or v is None or isinstance(v, Real) for v in values)
        ):
            raise ValueError(
                "Argument `metrics` must map each name to a list with one float for each of the "
                f"{num_epochs} epochs. Received: metrics[{name!r}]={values!r}. Pass None for "
                "missing values."
            )
        plain[name] = [None if value is None else float(value) for value in values]
    return plain


def _plain_json(name: str, value: object) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Argument `{name}` must consist of JSON values: dicts with string keys, lists, "
            f"strings, finite numbers, booleans and None. Received: {name}={value!r} ({error}). "
            "Convert other values, for example arrays with .tolist()."
        ) from error


def _encode_float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
