"""monitor: is a model in production still right, from the log of what it predicted?"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from scipy.stats import gamma

from keras_calibration.monitoring.bounds import loss_bounds, rate_factors
from keras_calibration.monitoring.log_sums import LogSums
from keras_calibration.monitoring.monitor_report import (
    Field,
    FieldError,
    Loss,
    MonitorReport,
    Period,
    Rates,
)
from keras_calibration.monitoring.scored_log import (
    PERIODS,
    FieldValues,
    period_name,
    period_starts,
    read_log,
)
from keras_calibration.ops.field_noise import drawn_field_sums

_EPSILON = 0.01  # the paper's
_NUM_DRAWS = 100
_OTHER = "(other)"


def monitor(
    log: Any,
    probability: str = "probability",
    label: str = "label",
    timestamp: str = "timestamp",
    fields: Sequence[str] = (),
    period: str = "day",
    since: str | None = None,
    until: str | None = None,
    tolerance: float = 0.05,
    confidence: float = 0.99,
    progress: bool = False,
) -> MonitorReport:
    """Calibration over time and by field of a scored log, and whether it has left its bounds.

    Three things are held to bounds:

    - predicted / observed, over all rows, in each period and for each value of each field: the
      interval must meet `[1 / (1 + tolerance), 1 + tolerance]`;
    - the Calibrated Log Loss of each period: it must be within `tolerance` of its expectation, the
      entropy of the predictions, or within what chance can do (`bounds.loss_bounds`). It finds
      what the mean hides: predictions that no longer tell rows apart as they claim to;
    - the Field-RCE of each field over the whole log: at most `tolerance` above its noise floor.

    **Many looks.** A log of 90 days and 1000 segments has thousands of intervals, and 1 % of them
    miss. So the chance of a false alert, `1 - confidence`, belongs to the whole call: it is shared
    equally among the families (all rows, periods, losses, for each field its error and its values),
    and within a family equally among its members (Bonferroni). Right probabilities then raise an
    alert in about one call of a hundred, however many periods and values there are. Called daily,
    each time on one new day, that is up to three times a year: raise `confidence` to 0.999 there.

    **Late labels.** Where labels come in for days (conversions), the last periods look as if too
    much was predicted: leave them out by `until`.

    The log is read in batches, once: memory holds one of them and sums (`LogSums`).

    Args:
        log: A Parquet or CSV file, a folder or list of them, a `pyarrow.dataset.Dataset` or a
            pandas data frame. Needs pyarrow: `pip install "keras-calibration[parquet]"`.
        probability: Column of the predicted probabilities.
        label: Column of the labels, 0 or 1.
        timestamp: Column of the times: timestamps, dates, ISO 8601 texts, or seconds since 1970.
        fields: Columns of the fields, of any type. The first 10,000 values of each are told apart.
        period: `"hour"`, `"day"`, `"week"` (from Monday) or `"month"`, in UTC.
        since: Time from which on rows count, ISO 8601, rounded down to a period; None for all.
        until: Time before whose period rows count; None for all.
        tolerance: Relative error that does not matter, at least 0.
        confidence: Probability that right probabilities raise no alert, in (0, 1).
        progress: Whether to show a progress bar, in rows.

    Returns:
        What was found: `print` it, read `is_alert` and `alerts`.

    Raises:
        ValueError: If an argument is out of its range, a column is missing or holds what it must
            not, or no row is left.
        ImportError: If pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> rng = np.random.default_rng(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open(f"{folder}/log.csv", "w") as file:
        ...         print("day,site,p,y", file=file)
        ...         for day in range(1, 4):
        ...             for p in rng.uniform(0.1, 0.5, 2000):
        ...                 site, drift = rng.choice(["a", "b"]), 1.6 if day == 3 else 1.0
        ...                 print(f"2026-03-0{day},{site},{p},{int(rng.random() < drift * p)}",
        ...                       file=file)
        ...     report = monitor(f"{folder}/log.csv", "p", "y", "day", fields=["site"])
        >>> [period.rates.is_off for period in report.periods]
        [False, False, True]
    """
    _check(period, tolerance, confidence, fields)
    values = {field: FieldValues() for field in fields}

    def values_of(column: str) -> Any:
        if column in values:
            return values[column]
        return lambda times: period_starts(times, period)

    batches = read_log(log, probability, label, fields, timestamp, values_of)
    first = None if since is None else int(period_starts([since], period)[0])
    last = None if until is None else int(period_starts([until], period)[0])
    sums = _read(batches, timestamp, list(fields), first, last, progress)
    if not sums.periods:
        raise ValueError(
            "The log has no rows"
            + ("." if since is until is None else f" from {since} until {until}.")
            + " Expected some: check the file and the times."
        )
    names = {field: [_OTHER, *known.names] for field, known in values.items()}
    return _report(sums, names, period, tolerance, confidence)


def _check(period: str, tolerance: float, confidence: float, fields: Any) -> None:
    if period not in PERIODS:
        raise ValueError(f"`period` must be one of {PERIODS}. Received: period={period!r}.")
    if not 0 <= tolerance < float("inf"):
        raise ValueError(
            "`tolerance` must be a finite number of at least 0, 0.05 for 5 %. "
            f"Received: tolerance={tolerance!r}."
        )
    if not 0 < confidence < 1:
        raise ValueError(
            f"`confidence` must be between 0 and 1. Received: confidence={confidence!r}."
        )
    if isinstance(fields, str):
        raise ValueError(f"`fields` must be a list of columns. Received: fields={fields!r}.")


def _read(
    batches: Any,
    timestamp: str,
    fields: list[str],
    first: int | None,
    last: int | None,
    progress: bool,
) -> LogSums:
    sums = LogSums(fields)
    # Without a bar nobody needs the number of rows, which reads a CSV file once more.
    bar = keras.utils.Progbar(batches.num_rows, unit_name="row") if progress else None
    rows = 0
    for batch in batches:
        starts = batch.fields[timestamp]
        keep = np.ones(len(starts), bool)
        keep &= True if first is None else starts >= first
        keep &= True if last is None else starts < last
        if keep.any():
            sums.add_batch(batch, timestamp, None if keep.all() else keep)
        rows += len(starts)
        if bar is not None:
            bar.update(rows, finalize=False)
    if bar is not None:
        bar.update(rows, finalize=True)
    return sums


def _report(
    sums: LogSums, names: dict[str, list[str]], period: str, tolerance: float, confidence: float
) -> MonitorReport:
    # Families: all rows, periods, losses, and for each field its error and its values.
    risk = (1 - confidence) / (3 + 2 * len(sums.fields))
    starts = sums.periods
    each = 1 - risk / len(starts)
    of_periods = np.stack([sums.of_period(start) for start in starts])
    rates = _rates([period_name(start, period) for start in starts], of_periods, tolerance, each)
    periods = [
        Period(
            rates=of_period,
            loss=_loss(sums.moments(start), tolerance, each),
            fields={
                field: _field_error(sums.of_field(field, start), tolerance, risk)
                for field in sums.fields
            },
        )
        for start, of_period in zip(starts, rates, strict=True)
    ]
    fields = {}
    for field in sums.fields:
        of_values = sums.of_field(field)
        there = np.flatnonzero(of_values[:, 2])
        by_rows = there[np.argsort(-of_values[there, 2], kind="stable")]
        fields[field] = Field(
            error=_field_error(of_values, tolerance, risk),
            values=_rates(
                [names[field][value] for value in by_rows],
                of_values[by_rows],
                tolerance,
                1 - risk / len(there),
            ),
        )
    overall = _rates(["all"], of_periods.sum(axis=0, keepdims=True), tolerance, 1 - risk)[0]
    return MonitorReport(period, confidence, tolerance, overall, periods, fields)


def _rates(names: list[str], sums: np.ndarray, tolerance: float, confidence: float) -> list[Rates]:
    residual, positives, rows, *_, squares = sums.T
    # Probabilities that are all 0 predict the smallest possible: no division by 0.
    predicted = np.maximum(sums[:, 5], np.finfo(np.float64).tiny ** 0.5)
    squares = np.maximum(squares, predicted**2 / rows)
    low, high = rate_factors(positives, predicted, squares, confidence)
    with np.errstate(divide="ignore"):
        low, high = 1 / high, 1 / low
    is_off = (low > 1 + tolerance) | (high < 1 / (1 + tolerance))
    observed, mean = positives / rows, np.clip(positives - residual, 0, rows) / rows
    columns = (rows.astype(int), mean, observed, low, high, is_off)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return [Rates(name, *of_cell) for name, of_cell in zip(names, values, strict=True)]


def _loss(moments: np.ndarray, tolerance: float, confidence: float) -> Loss:
    value, expected, low, high = loss_bounds(moments, confidence)
    low, high = low - tolerance * expected, high + tolerance * expected
    return Loss(value, expected, max(low, 0.0), high, not (np.isnan(value) or low <= value <= high))


def _field_error(sums: np.ndarray, tolerance: float, risk: float) -> FieldError:
    sums = sums[sums[:, 2] > 0]
    value = _field_rce(sums)
    drawn = [_field_rce(draw) for draw in drawn_field_sums(sums, _NUM_DRAWS)]
    mean, deviation = float(np.mean(drawn)), float(np.std(drawn, ddof=1))
    # The error is a sum of absolute values: not negative, and skewed where segments are few.
    spread = max(deviation, 1e-12) ** 2 / max(mean, 1e-12)
    high = float(gamma.isf(risk, mean / spread, scale=spread)) if mean else 0.0
    return FieldError(value, mean, deviation, high + tolerance, value > high + tolerance)


def _field_rce(sums: np.ndarray) -> float:
    """`ops.field_rce`, in NumPy: a hundred draws of every period would wait for tensors."""
    residual, positives, rows = sums[:, :3].T
    return float(np.sum(np.abs(residual) * rows / (positives + _EPSILON * rows)) / rows.sum())
