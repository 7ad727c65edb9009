"""The sums of a scored log that a metric needs, and the metric's state from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import keras
import numpy as np

from calibration_records._limits import FIELD_RCE_EPSILON
from calibration_records.logs import LogSums, ScoredLog
from calibration_records.logs.query import (
    FIELD,
    FIELD_SUMS,
    Query,
    field_sums,
    label_sums,
    logit_moments,
    moments_of,
)
from calibration_records.logs.scored_log import field_name
from calibration_records.logs.sums import TOTALS, whole_numbers
from keras_calibration._ops.field_sums import field_ece_from_sums, field_rce_from_sums, known_ids
from keras_calibration._ops.folds import num_groups_of
from keras_calibration.metrics.additive_metric import AdditiveMetric
from keras_calibration.metrics.field_error import FieldError
from keras_calibration.metrics.log_sums import LogitMoments


def log_queries(
    log: ScoredLog, metrics: keras.metrics.Metric | Iterable[keras.metrics.Metric] = ()
) -> dict[str, Query]:
    """The sums that `score` needs of a log, for `logs.log_sums` on other machines.

    Args:
        log: The log, or its description without a source.
        metrics: Metrics that have such sums: `LogLoss`, `NormalizedEntropy`, `CalibrationRatio` or
            `CalibratedLogLoss`. The field errors of the log's fields are always included.

    Raises:
        ValueError: If a metric has no sums.

    Example:
        >>> from keras_calibration.metrics import CalibratedLogLoss, LogLoss
        >>> list(log_queries(ScoredLog(fields=["site"]), [LogLoss(), CalibratedLogLoss()]))
        ['totals', 'moments/2/None/0', 'field/site']
    """
    queries: dict[str, Query] = {}
    columns: list[str] = []
    for metric in [metrics] if isinstance(metrics, keras.Metric) else metrics:
        if not has_sums(metric):
            raise ValueError(
                "Argument `metrics` must hold metrics that SQL can compute from sums: LogLoss, "
                "NormalizedEntropy, CalibrationRatio, CalibratedLogLoss. Received: "
                f"{type(metric).__name__}. Pass it to `score`, with a log that DuckDB reads."
            )
        for sums in metric.log_sums().values():
            if isinstance(sums, LogitMoments):
                queries[_name_moments(sums)] = logit_moments(*sums)
            else:
                columns += sums.columns
    weighted = log.sample_weight is not None
    if columns:
        queries = {TOTALS: label_sums(list(dict.fromkeys(columns)), weighted), **queries}
    for field in log.fields:
        queries[FIELD + field_name(field)] = field_sums(
            [field] if isinstance(field, str) else field, weighted
        )
    return queries


def has_sums(metric: keras.metrics.Metric) -> bool:
    """Whether a metric can take its state from sums of a log."""
    return bool(getattr(metric, "has_log_sums", False))


def add_log(metric: AdditiveMetric, sums: LogSums) -> None:
    """Adds the rows of a log to the state of a metric that `has_sums`."""
    state = {}
    for name, needed in metric.log_sums().items():
        if isinstance(needed, LogitMoments):
            table = sums.table(_name_moments(needed))
            num_groups = num_groups_of(needed.num_folds, needed.bias_fraction)
            state[name] = np.concatenate(moments_of(table, table.get("key_group", 0), num_groups))
        else:
            state[name] = sums.columns(TOTALS, needed.columns)[0]
    metric.add_sums(state)
    # The metric counts rows in int32, from which it takes a hash only.
    metric.add_row_count(sums.num_rows % 2**31)


def _name_moments(needed: LogitMoments) -> str:
    return f"moments/{needed.num_folds}/{needed.bias_fraction}/{needed.seed}"


def add_field(metric: FieldError, table: Mapping[str, np.ndarray]) -> None:
    """Adds the sums of the values of a field, which are ids, to the state of a field metric."""
    (values,) = (values for name, values in table.items() if name.startswith("key_"))
    ids = whole_numbers(values)
    if ids is None:
        raise ValueError(
            f"The field values of {metric.name} must be whole numbers in [0, num_values). "
            f"Received: {values[:3].tolist()}. Name the field in `fields` of the ScoredLog instead."
        )
    metric.check_ids(ids)
    ((name, shape),) = metric.sum_shapes.items()
    sums = np.zeros(shape)
    # Ids outside of the vocabulary share the last row, so `add.at`, which adds repeated ids.
    np.add.at(
        sums,
        np.asarray(known_ids(ids, metric.num_values)),
        np.stack([table[name] for name in FIELD_SUMS], axis=1),
    )
    metric.add_sums({name: sums})


def field_errors(sums: LogSums, fields: Iterable[str]) -> dict[str, float]:
    """Field-ECE and Field-RCE of these fields of a log."""
    errors = {}
    for field in fields:
        # Only the columns that the errors use: all seven of a million values would copy 56 MB.
        columns = sums.columns(FIELD + field, ("residual", "positives", "weight"))
        errors[f"{field}_field_ece"] = float(field_ece_from_sums(columns))
        errors[f"{field}_field_rce"] = float(field_rce_from_sums(columns, FIELD_RCE_EPSILON))
    return errors


def error_names(rows: object) -> list[str]:
    """The names in `field_errors` of a log; none for other rows."""
    fields = fields_of(rows) if isinstance(rows, ScoredLog | LogSums) else []
    return [f"{field}_field_{error}" for field in fields for error in ("ece", "rce")]


def fields_of(log: ScoredLog | LogSums) -> list[str]:
    """The names of the fields of a log."""
    if isinstance(log, ScoredLog):
        return list(map(field_name, log.fields))
    return [name.removeprefix(FIELD) for name in log.names if name.startswith(FIELD)]
