"""The form of a run's record: what it must hold, and how a file holds it."""

import json
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from keras_calibration.ledger.metric_names import DIRECTIONS

SCHEMA_VERSION = 1
STATUSES = ("started", "finished", "diverged")
# What a seed can be given to, each apart.
SEED_ROLES = ("initialization", "order", "dropout", "augmentation")

_REQUIRED = ("pipeline", "seed", "status")
# What a record holds that does not say otherwise.
_OPTIONAL: dict[str, Any] = {
    "epochs": [],
    "metrics": {},
    "kept_epoch": None,
    "directions": {},
    "initial_weights": None,
    "backend": None,
    "versions": {},
    "configuration": None,
    "family": None,
    "seeds": {},
    "num_rows": None,
    "row_losses": None,
}


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


def to_json(header: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The text of a record's file.

    JSON knows neither NaN nor infinity: the metrics have the strings `"NaN"`, `"Infinity"` and
    `"-Infinity"` in their place.

    Args:
        header: run id and time, as the ledger gives them.
        record: what `validate_record` returned.

    Returns:
        ASCII text.

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
    """The record of a file's text.

    Args:
        text: what `to_json` returned, by this or an older version of the package.
        origin: where it comes from, for the message of an error.

    Returns:
        The record, with what the ledger gave it.

    Raises:
        ValueError: it is no record, or of a newer version.
    """
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
            f"Received {origin!r}, which is no record of a run ({error}); expected every *.json "
            "in the folder of a ledger to be one; move files that are not the ledger's, or were "
            "damaged from outside, to another folder."
        ) from error
    if record is None:
        raise ValueError(
            f"Received {origin!r} with schema_version={version}; expected at most "
            f"{SCHEMA_VERSION}; a newer keras-calibration wrote it: upgrade this one."
        )
    return record


def _decode(content: dict[str, Any]) -> dict[str, Any]:
    header = {name: content.pop(name) for name in ("schema_version", "run_id", "created")}
    if not (isinstance(header["run_id"], str) and isinstance(header["created"], str)):
        raise ValueError("its run_id and created are no strings")
    content["metrics"] = {
        name: [float(value) if isinstance(value, str) else value for value in values]
        for name, values in content["metrics"].items()
    }
    return {**header, **_check_record(content)}


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
    epochs, kept = [int(epoch) for epoch in record["epochs"]], record["kept_epoch"]
    if kept is not None and kept not in epochs:
        raise ValueError(
            f"Received kept_epoch={kept!r} with the epochs {epochs}; expected one of them, or None "
            "where the run kept its last epoch."
        )
    return {
        **record,
        "seed": int(record["seed"]),
        "epochs": epochs,
        "kept_epoch": None if kept is None else int(kept),
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
    "kept_epoch": (
        _is_optional_count,
        "one of the epochs, or None",
        "pass the epoch whose weights were restored or saved as the best",
    ),
    "directions": (
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(name, str) and way in DIRECTIONS for name, way in value.items())
        ),
        f"a dict from the metric's name to one of {DIRECTIONS}",
        "leave out the metrics of which neither is better",
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
