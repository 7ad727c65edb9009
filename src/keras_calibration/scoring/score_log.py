"""Metrics of a scored log, from sums that an engine computes where the rows are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import cast

import keras

from calibration_records.logs import LogSums, Periods, ScoredLog, log_sums
from calibration_records.logs.compute import is_ray
from calibration_records.logs.embedded import log_batches
from calibration_records.logs.query import FIELD, Query
from calibration_records.logs.rows import Selection
from calibration_records.logs.sums import TOTALS
from calibration_records.monitoring.bounds import PeriodLosses
from keras_calibration.metrics.field_metrics import FieldMetrics
from keras_calibration.scoring.log_metrics import (
    add_field,
    add_log,
    error_names,
    field_errors,
    fields_of,
    has_sums,
    log_queries,
)
from keras_calibration.scoring.rows_to_score import RowsToScore
from keras_calibration.scoring.updates import Metrics, named_metrics, update_metrics


def update_from_log(
    log: ScoredLog | LogSums,
    metrics: Mapping[str, keras.metrics.Metric],
    by_field: FieldMetrics,
    verbose: int,
) -> dict[str, float]:
    """Adds a log to metrics and field metrics of ids; returns the errors of the log's fields.

    Metrics that `log_queries` allows get their sums from the log's engine; the others are updated
    with chunks of its rows.
    """
    direct = [metric for metric in metrics.values() if has_sums(metric)]
    others = [metric for metric in metrics.values() if not has_sums(metric)]
    by_field.check_sums()
    if others and (isinstance(log, LogSums) or is_ray(log.source)):
        log_queries(ScoredLog(), others)  # raises and names the metric: there are no rows to read
    if isinstance(log, LogSums):
        sums = log
    else:
        with_all = dataclasses.replace(
            log, fields=list(dict.fromkeys([*log.fields, *by_field.by_field]))
        )
        sums = log_sums(with_all, log_queries(with_all, direct), verbose=verbose)
    if not sums.num_rows:
        raise ValueError("The log has no rows to score, or all have weight 0.")
    for metric in direct:
        add_log(metric, sums)
    for field, field_metrics in by_field.by_field.items():
        for metric in field_metrics:
            add_field(metric, sums.table(FIELD + field))
    # Metrics without sums in the log read its rows, which only a `ScoredLog` has: some take
    # probabilities, the others logits.
    for column, from_logits in (("p", False), ("l", True)):
        # Some metrics of Keras have it in their configuration alone.
        group = [
            metric
            for metric in others
            if bool(getattr(metric, "from_logits", metric.get_config().get("from_logits")))
            == from_logits
        ]
        if group:
            rows = _read_rows(cast(ScoredLog, log), column)
            update_metrics(group, FieldMetrics({}), rows, sums.num_rows, verbose)
    return field_errors(sums, fields_of(log))


def score_by_period(
    log: ScoredLog,
    metrics: Metrics = (),
    period: str | Periods = "day",
    verbose: int = 1,
) -> dict[str, dict[str, float]]:
    """Computes metrics of a scored log for each hour, day, week or month, in the same passes.

    With a `CalibratedLogLoss`, the results also hold `rolling_calibrated_log_loss`, the log loss of
    `σ(l + c)` with the bias c fitted on the period before. It is the loss of a model whose bias is
    corrected once a period, from the past alone. Unlike the Calibrated Log Loss, it counts a bias
    that cannot be foreseen. It is NaN for the first period. A period whose labels are all equal
    determines no bias: the one before stays in force.

    Args:
        log: The log, with its `timestamp`.
        metrics: Metrics as for `log_queries`, or name → metric; the field errors of the log's
            fields are added.
        period: `"hour"`, `"day"`, `"week"`, `"month"` or `"year"` in UTC, or `logs.Periods` with
            `since` and `until`.
        verbose: 1 shows a progress bar, 0 does not.

    Returns:
        Period → name → result, in the order of time.

    Raises:
        ValueError: As `score`, but without metrics and fields the results are empty; or the log
            has no rows in these periods.

    Example:
        >>> import pandas as pd
        >>> from keras_calibration.metrics import LogLoss
        >>> rows = pd.DataFrame(
        ...     {
        ...         "label": [1, 0, 1],
        ...         "probability": [0.5, 0.5, 0.9],
        ...         "at": ["2026-03-01", "2026-03-01T12:00", "2026-03-02"],
        ...     }
        ... )
        >>> by_day = score_by_period(ScoredLog(rows, timestamp="at"), LogLoss(), verbose=0)
        >>> {day: round(scores["log_loss"], 3) for day, scores in by_day.items()}
        {'2026-03-01': 0.693, '2026-03-02': 0.105}

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, the version with regression, section
        5.5 (the rolling bias).
    """
    periods = period if isinstance(period, Periods) else Periods(period)
    named = named_metrics(metrics, error_names(log))
    queries = log_queries(log, [*named.values()])
    totals = queries.pop(TOTALS, Query({}, {}))
    queries["rows"] = dataclasses.replace(totals, sums={"rows": "1", **totals.sums})
    queries = {name: query.by_period() for name, query in queries.items()}
    sums = log_sums(log, queries, Selection(periods.length, periods.ends), verbose)
    if not sums.num_rows:
        raise ValueError(f"The log has no rows in these periods, {periods}.")
    scores: dict[str, dict[str, float]] = {}
    biases: dict[str, float] = {}
    for start, part in sums.by_period().items():
        results = {}
        for name, metric in named.items():
            fresh = type(metric).from_config(metric.get_config())
            add_log(fresh, part)
            results[name] = float(fresh.result())
            if getattr(fresh, "has_rolling_loss", False):
                losses = PeriodLosses(fresh.moments_of_all_rows())
                # Score this period with the bias of the one before, then keep its own for the next.
                # A period that determines none leaves the old one in force.
                bias = biases.get(name, math.nan)
                results[f"rolling_{name}"] = losses.mean_loss(bias)
                biases[name] = bias if math.isnan(losses.bias) else losses.bias
        scores[periods.name(start)] = results | field_errors(part, fields_of(part))
    return scores


def _read_rows(log: ScoredLog, prediction: str) -> Iterator[RowsToScore]:
    """The rows of a log, with the column "p" (probability) or "l" (logit) as the prediction."""
    columns = ["y", prediction, *(["w"] if log.sample_weight is not None else [])]
    for batch in log_batches(log, columns, Selection()):
        y, p, *w = (column.reshape(-1, 1) for column in batch.values())
        yield RowsToScore(y, p, w[0] if w else None)
