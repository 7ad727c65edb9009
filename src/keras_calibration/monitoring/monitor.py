"""Checks the predictions of a model in production against the labels that followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
from scipy.stats import gamma

from keras_calibration.logs.periods import Periods
from keras_calibration.monitoring.bounds import loss_bounds, rate_factors
from keras_calibration.monitoring.class_log import ClassNumbers, against_others, class_names
from keras_calibration.monitoring.class_monitor_report import ClassMonitorReport
from keras_calibration.monitoring.log_sums import LogSums
from keras_calibration.monitoring.monitor_report import (
    FieldErrorCheck,
    FieldReport,
    LossCheck,
    MonitorReport,
    PeriodReport,
    RateCheck,
)
from keras_calibration.monitoring.scored_log import FieldValues, read_log
from keras_calibration.scoring.batch import Batch
from keras_calibration.scoring.parquet import ParquetBatches, Paths
from keras_calibration.solvers.field_noise import drawn_field_sums

if TYPE_CHECKING:
    import pandas

_EPSILON = 0.01  # the paper's
_NUM_DRAWS = 100
_OTHER = "(other)"


def monitor(
    log: Paths | pandas.DataFrame,
    *,
    probability: str | Sequence[str] = "probability",
    label: str = "label",
    timestamp: str = "timestamp",
    fields: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    period: str | Periods = "day",
    tolerance: float = 0.05,
    confidence: float = 0.99,
    verbose: int = 0,
) -> MonitorReport | ClassMonitorReport:
    """Checks the calibration of a scored log over time and by field.

    Three figures are compared with bounds:

    - predicted / observed, over all rows, in each period and for each field value: its confidence
      interval must overlap `[1 / (1 + tolerance), 1 + tolerance]`;
    - the Calibrated Log Loss of each period: within `tolerance` of its expected value (the entropy
      of the predictions), or within what chance explains. It detects a broken feature that leaves
      the mean right;
    - the Field-RCE of each field over the whole log: at most `tolerance` above its noise floor.

    `1 - confidence` is the probability of a false alert for the whole call. It is divided equally
    among the kinds of checks, and within each kind among its intervals (Bonferroni). For a daily
    call, use `confidence=0.999`.

    If labels arrive late (conversions), the latest periods seem over-predicted: exclude them with
    `period=Periods("day", until=...)`.

    For a model of K classes, all this is done for each class against the others: its label is 1 in
    the rows of the class and 0 elsewhere. `1 - confidence` is divided equally among the classes.

    The log is read once, in batches, so that memory does not grow with it: about 27 kB for each
    period of each class, and 56 bytes for each field value in it.

    Args:
        log: A Parquet or CSV file, a folder or list of them, a `pyarrow.dataset.Dataset` or a
            pandas data frame. Requires pyarrow: `pip install "keras-calibration[parquet]"`.
        probability: Column of the predicted probabilities. For K classes, of at least 3, a list of
            K columns, or one Arrow column of lists of length K; each row must add up to 1 within
            0.01.
        label: Column of the labels, 0 or 1. For K classes, class numbers from 0, or names of
            classes.
        timestamp: Column of the times: timestamps, dates, ISO 8601 texts, or seconds since 1970.
        fields: Columns of the fields, of any type. The first 10,000 values of each are kept apart.
        classes: Names of the K classes, in the order of the probabilities. The default is the names
            of the columns of `probability`, or the class numbers.
        period: `"hour"`, `"day"`, `"week"` or `"month"`, or `monitoring.Periods`.
        tolerance: Relative error that does not matter, at least 0.
        confidence: Probability that right predictions raise no alert, in (0, 1).
        verbose: 1 shows a progress bar, 0 does not.

    Returns:
        A `MonitorReport`, or a `ClassMonitorReport` for K classes: print it, or read `is_alert` and
        `alerts`.

    Raises:
        ValueError: An argument is out of its range, a column is missing or has invalid values, or
            no rows are left.
        ImportError: pyarrow is not installed.

    Example:
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(0.1, 0.5, 6000)
        >>> day = np.repeat(["2026-03-01", "2026-03-02", "2026-03-03"], 2000)
        >>> drift = np.where(day == "2026-03-03", 1.6, 1.0)
        >>> y = (rng.random(6000) < drift * p).astype(int)
        >>> log = pd.DataFrame({"timestamp": day, "probability": p, "label": y})
        >>> [period.rates.is_off for period in monitor(log).periods]
        [False, False, True]
    """
    _check(tolerance, confidence, fields)
    names = class_names(probability, classes)
    periods = period if isinstance(period, Periods) else Periods(period)
    values = {field: FieldValues() for field in fields}
    batches = read_log(
        log,
        probability,
        label,
        fields,
        timestamp,
        lambda name: values.get(name, periods.starts),
        None if names is None else ClassNumbers(names),
    )
    num_classes = None if names is None else len(names)
    sums = _read(batches, num_classes, timestamp, periods, list(fields), verbose)
    if not sums:
        between = f" with since={periods.since!r} and until={periods.until!r}"
        raise ValueError(
            f"The log has no rows{between if periods.since or periods.until else ''}. Check the "
            "file and the times."
        )
    of_fields = {field: [_OTHER, *known.names] for field, known in values.items()}
    if len(sums) == 1:
        return _report(sums[0], of_fields, periods, tolerance, confidence)
    of_each = 1 - (1 - confidence) / len(sums)
    reports = [_report(of_class, of_fields, periods, tolerance, of_each) for of_class in sums]
    names = names or [str(number) for number in range(len(sums))]
    by_name = dict(zip(names, reports, strict=True))
    return ClassMonitorReport(periods.length, confidence, tolerance, by_name)


def _check(tolerance: float, confidence: float, fields: Sequence[str]) -> None:
    if not 0 <= tolerance < float("inf"):
        raise ValueError(
            "Argument `tolerance` must be a finite number of at least 0, for example 0.05 for 5 %. "
            f"Received: tolerance={tolerance!r}."
        )
    if not 0 < confidence < 1:
        raise ValueError(
            f"Argument `confidence` must be between 0 and 1. Received: confidence={confidence!r}."
        )
    if isinstance(fields, str):
        raise ValueError(
            f"Argument `fields` must be a list of columns. Received: fields={fields!r}. Pass "
            f"fields=[{fields!r}]."
        )


def _read(
    batches: ParquetBatches,
    num_classes: int | None,
    timestamp: str,
    periods: Periods,
    fields: list[str],
    verbose: int,
) -> list[LogSums]:
    """The sums of the log, of each class if there are several; empty without rows."""
    sums: list[LogSums] = []
    # Only the bar needs the number of rows, which takes another pass over a CSV file.
    bar = keras.utils.Progbar(batches.num_rows, unit_name="row") if verbose else None
    rows = 0
    for batch in batches:
        keep = periods.includes(batch.fields[timestamp])
        if keep.any():
            of_classes = against_others(_kept(batch, keep), num_classes)
            if not sums:
                sums = [LogSums(fields) for _ in of_classes]
                num_classes = None if len(sums) == 1 else len(sums)
            for of_class, part in zip(sums, of_classes, strict=True):
                of_class.add_batch(part, timestamp)
        rows += len(keep)
        if bar is not None:
            bar.update(rows, finalize=False)
    if bar is not None:
        bar.update(rows, finalize=True)
    return sums


def _kept(batch: Batch, keep: np.ndarray) -> Batch:
    """The rows of a batch where `keep` is true."""
    if keep.all():
        return batch
    fields = {name: values[keep] for name, values in batch.fields.items()}
    return Batch(batch.labels[keep], batch.predictions[keep], None, fields)


def _report(
    sums: LogSums,
    names: dict[str, list[str]],
    periods: Periods,
    tolerance: float,
    confidence: float,
) -> MonitorReport:
    # Kinds of checks: all rows, periods, losses, and for each field its error and its values.
    risk = (1 - confidence) / (3 + 2 * len(sums.fields))
    starts = sums.periods
    each = 1 - risk / len(starts)
    of_periods = np.stack([sums.of_period(start) for start in starts])
    rates = _rates([periods.name(start) for start in starts], of_periods, tolerance, each)
    reports = [
        PeriodReport(
            rates=of_period,
            loss=_loss(sums.moments(start), tolerance, each),
            fields={
                field: _field_error(sums.of_field(field, start), tolerance, risk)
                for field in sums.fields
            },
        )
        for start, of_period in zip(starts, rates, strict=True)
    ]
    fields = {
        field: _field_report(sums.of_field(field), names[field], tolerance, risk)
        for field in sums.fields
    }
    overall = _rates(["all"], of_periods.sum(axis=0, keepdims=True), tolerance, 1 - risk)[0]
    return MonitorReport(periods.length, confidence, tolerance, overall, reports, fields)


def _field_report(
    sums: np.ndarray, names: Sequence[str], tolerance: float, risk: float
) -> FieldReport:
    """The checks of a field and of its values, the values with most rows first."""
    present = np.flatnonzero(sums[:, 2])
    by_rows = present[np.argsort(-sums[present, 2], kind="stable")]
    return FieldReport(
        error=_field_error(sums, tolerance, risk),
        values=_rates(
            [names[value] for value in by_rows], sums[by_rows], tolerance, 1 - risk / len(present)
        ),
    )


def _rates(
    names: Sequence[str], sums: np.ndarray, tolerance: float, confidence: float
) -> list[RateCheck]:
    residual, positives, rows, *_, squares = sums.T
    # Probabilities that are all 0 count as the smallest positive number: no division by 0.
    predicted = np.maximum(sums[:, 5], np.finfo(np.float64).tiny ** 0.5)
    squares = np.maximum(squares, predicted**2 / rows)
    low, high = rate_factors(positives, predicted, squares, confidence)
    with np.errstate(divide="ignore"):
        low, high = 1 / high, 1 / low
    is_off = (low > 1 + tolerance) | (high < 1 / (1 + tolerance))
    observed, mean = positives / rows, np.clip(positives - residual, 0, rows) / rows
    columns = (rows.astype(int), mean, observed, low, high, is_off)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return [RateCheck(name, *of_cell) for name, of_cell in zip(names, values, strict=True)]


def _loss(moments: np.ndarray, tolerance: float, confidence: float) -> LossCheck:
    value, expected, low, high = loss_bounds(moments, confidence)
    low, high = low - tolerance * expected, high + tolerance * expected
    is_off = not (np.isnan(value) or low <= value <= high)
    return LossCheck(value, expected, max(low, 0.0), high, is_off)


def _field_error(sums: np.ndarray, tolerance: float, risk: float) -> FieldErrorCheck:
    sums = sums[sums[:, 2] > 0]
    value = _field_rce(sums)
    drawn = [_field_rce(draw) for draw in drawn_field_sums(sums, _NUM_DRAWS)]
    mean, deviation = float(np.mean(drawn)), float(np.std(drawn, ddof=1))
    # A gamma distribution: the error is a sum of absolute values, skewed if segments are few.
    spread = max(deviation, 1e-12) ** 2 / max(mean, 1e-12)
    high = float(gamma.isf(risk, mean / spread, scale=spread)) if mean else 0.0
    return FieldErrorCheck(value, mean, deviation, high + tolerance, value > high + tolerance)


def _field_rce(sums: np.ndarray) -> float:
    """Field-RCE in NumPy, which is faster than tensors for a hundred small draws."""
    residual, positives, rows = sums[:, :3].T
    return float(np.sum(np.abs(residual) * rows / (positives + _EPSILON * rows)) / rows.sum())
