"""fit_calibrator, update_calibrator: fit calibrators to sums of a scored log."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import keras
import numpy as np

from calibration_records._check import instance
from calibration_records._columns import numbers_of
from calibration_records.logs import LogSums, ScoredLog, log_sums
from calibration_records.logs.query import SAMPLED, Query, logit_bins, num_groups
from calibration_records.logs.rows import Selection
from calibration_records.logs.sums import whole_numbers
from keras_calibration._rows.checks import refuse_absent_classes
from keras_calibration._rows.columns import numbers_in_float32, take
from keras_calibration._rows.door import columns_of
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import are_counts, check_counts, check_weights_are
from keras_calibration._solvers.logit_histogram import (
    BINS_PER_UNIT,
    FAR_LOGITS_ADVICE,
    NUM_BINS,
    LogitHistogram,
    bin_edges,
)
from keras_calibration.layers.field_ids import Fields
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import assign_all, build_for, fit_to, wanted_by
from keras_calibration.layers.head import Head
from keras_calibration.layers.histogram_head import HistogramHead
from keras_calibration.layers.unknown_values import warn_of_unknown

_CELLS, _HISTOGRAM = "cells/", "histogram"
_SECONDS_OF_A_DAY = 86_400
# Bins of a logit unit, tried until there are at most so many groups of rows.
_BINS_PER_UNIT = (BINS_PER_UNIT, 16, 4, 1)
_MOST_CELLS = 1 << 21


@np.errstate(under="ignore")
def fit_calibrator(
    layer: Head, log: ScoredLog | LogSums, verbose: int = 1, *, weights_are: str = "importance"
) -> FitSummary:
    """Fits a head to a scored log of any size.

    - A head with `update` (`BiasCorrection`, `TemperatureScaling`, `PlattScaling`, `ILPS`, …) needs
      a histogram of the logits by label: two passes, one of which checks the rows. The fit equals
      `layer.fit` to all rows, except that knots lie on multiples of 1/64.
    - `FieldBias`, `FieldILPS` and all other layers with a direct fit are fitted to groups of rows
      that have the same field values and nearly the same logit, with 64 bins per unit of the logit.
      Two negatives and two positives represent each group; they have the means and variances of its
      logits. A head that follows time is fitted to such groups of each day in UTC, by the log's
      `timestamp`.
    - If there are more than two million groups, as with many fields, there are 16, 4 or 1 bins per
      unit; offsets then differ from the offsets of a fit to all rows by less than their standard
      errors. If a numeric column has a different value in each row, there are as many groups as
      rows, and they must fit into memory: draw a sample with `where`.

    Args:
        layer: The head. Its features are columns of the log.
        log: The log, or the sums of `calibrator_queries`. Columns named in its `fields` are not
            needed.
        verbose: 1 shows a progress bar, 0 does not.
        weights_are: `"importance"`, weights known up to a common factor, or `"counts"` of rows, see
            `Head.fit`.

    Returns:
        The `FitSummary`; its log losses are means over the groups.

    Raises:
        ValueError: If the layer has no direct fit, a row is invalid, a feature is missing, all
            labels are of one class, or a logit is beyond ±16295. The layer is then unchanged.

    Warns:
        UserWarning: If a field has values that are not in its vocabulary.

    Example:
        >>> import keras, pandas as pd
        >>> from keras_calibration.layers import FieldBias
        >>> rng = np.random.default_rng(0)
        >>> site = rng.integers(0, 2, 5000)
        >>> label = rng.random(5000) < np.where(site, 0.6, 0.2)
        >>> rows = pd.DataFrame({"label": label, "probability": 0.4, "site": site})
        >>> head = FieldBias({"site": 2})
        >>> summary = fit_calibrator(head, ScoredLog(rows), verbose=0)
        >>> logits = head(np.full(2, np.log(2 / 3)), {"site": np.array([0, 1])})
        >>> keras.ops.convert_to_numpy(keras.ops.sigmoid(logits)).astype(float).round(1).ravel()
        array([0.2, 0.6])
    """
    _check_head(layer)
    sums = _sum_log(layer, log, verbose, weights_are)
    if isinstance(layer, HistogramHead):
        return layer.fit_sums(_build_histogram(sums, weights_are))
    rows = _read_rows(layer, sums, weights_are)
    num_rows = rows.num_meant if are_counts(rows.weights) else sums.num_rows
    fit = fit_to(layer, rows)
    fit = replace(fit, summary=replace(fit.summary, num_rows=num_rows))
    warn_of_unknown(layer, rows, fit)
    build_for(layer, rows)
    assign_all([(layer, fit)])
    return fit.summary


def _read_rows(layer: Head, sums: LogSums, weights_are: str) -> Rows:
    """Rows that stand for the groups of a log."""
    (name,) = (name for name in sums.names if name.startswith(_CELLS))
    # The name of the query says how fine its bins are.
    edges = bin_edges(int(name.removeprefix(_CELLS)))
    table, _ = _convert_to_counts(sums.table(name), edges, weights_are)
    logits, labels, weights, group = _expand_to_rows(table, 0.5 * (edges[:-1] + edges[1:]))
    reads = layer.reads()
    features = {
        feature: _read_feature(table[f"key_value_{place}"], feature, reads.fields, reads.numeric)
        for place, feature in enumerate(layer.feature_names or ())
    }
    # Equal rows are those that stand for a group, so nothing need look for copies: each is alone.
    rows = Rows(
        logits,
        labels,
        weights,
        columns_of(take(features, group), wanted_by(layer)),
        groups=np.full(len(labels), -1),
    )
    refuse_absent_classes(rows.shares.T @ weights, len(rows))
    # A group has one day, as its rows were grouped by day.
    if layer.follows_time:
        days = np.asarray(table["key_period"])[group] / _SECONDS_OF_A_DAY
        rows = replace(rows, times=days, time_unit="day")
    return rows


@np.errstate(under="ignore")
def update_calibrator(
    layer: Head,
    log: ScoredLog | LogSums,
    forget: float = 0.0,
    verbose: int = 1,
    *,
    weights_are: str = "importance",
) -> FitSummary:
    """Adds the rows of a log to the rows of earlier fits, as the head's `update`.

    For heads without `update`, keep the `LogSums` of `calibrator_queries`, add the `LogSums` of the
    new rows, and call `fit_calibrator` with the sum.

    Args:
        layer: A head with `update`, a calibrator of logits alone, such as `ILPS`.
        log: The log of the new rows, or its sums.
        forget: Share of the weight of all earlier rows to drop first, in [0, 1].
        verbose: 1 shows a progress bar, 0 does not.
        weights_are: `"importance"` or `"counts"`, see `fit_calibrator`.

    Raises:
        ValueError: As `update` of the layer.

    Example:
        >>> import pandas as pd
        >>> from keras_calibration.layers import BiasCorrection
        >>> day = ScoredLog(pd.DataFrame({"label": [1, 0, 0, 0], "probability": [0.5] * 4}))
        >>> layer = BiasCorrection()
        >>> first = fit_calibrator(layer, day, verbose=0)
        >>> update_calibrator(layer, day, verbose=0).num_rows
        8
    """
    if not isinstance(layer, HistogramHead):
        raise ValueError(
            "Argument `layer` must be a head with `update`, such as ILPS or PlattScaling. "
            f"Received: {layer!r}. Call `fit_calibrator` with the sums of all rows."
        )
    return layer.update_sums(
        _build_histogram(_sum_log(layer, log, verbose, weights_are), weights_are), forget
    )


def calibrator_queries(layer: Head, bins_per_unit: int = 64) -> dict[str, Query]:
    """The sums that `fit_calibrator` needs from a log, for `logs.log_sums`.

    Args:
        layer: The head.
        bins_per_unit: Number of bins per unit of the logit, for heads without `update`.

    Raises:
        ValueError: If the layer has no direct fit.

    Example:
        >>> from keras_calibration.layers import FieldBias, ILPS
        >>> list(calibrator_queries(ILPS())), list(calibrator_queries(FieldBias({"site": 9})))
        (['histogram'], ['cells/64'])
    """
    _check_head(layer)
    if isinstance(layer, HistogramHead):
        return {_HISTOGRAM: logit_bins(_BINS_PER_UNIT[0])}
    features = layer.feature_names
    if features is None:
        raise ValueError(f"It is not known which features {layer!r} reads.")
    query = logit_bins(bins_per_unit, features)
    return {f"{_CELLS}{bins_per_unit}": query.by_period() if layer.follows_time else query}


def _check_head(layer: Head) -> None:
    if not isinstance(layer, Head) or not layer.has_direct_fit():
        raise ValueError(f"Argument `layer` must be a head with a direct fit. Received: {layer!r}.")
    layer.check_logits((None, 1))  # a log has one logit a row


def _sum_log(layer: Head, log: ScoredLog | LogSums, verbose: int, weights_are: str) -> LogSums:
    """The sums of a log; a sample of its rows shows which bins make few groups."""
    check_weights_are(weights_are, getattr(log, "sample_weight", "") is not None)
    if isinstance(log, LogSums):
        return log
    instance("log", log, ScoredLog, "a ScoredLog or LogSums", "To arrays, fit by `layer.fit`.")
    if layer.follows_time and log.timestamp is None:
        raise ValueError(
            f"Argument `log` must name its column of times, because this {type(layer).__name__} "
            "follows time. Received: timestamp=None. Pass ScoredLog(…, timestamp=…)."
        )
    log = replace(log, fields=tuple(layer.feature_names or ()))
    selection = Selection("day" if layer.follows_time else None)
    if isinstance(layer, HistogramHead):
        return log_sums(log, calibrator_queries(layer), selection, verbose)
    # From fine to coarse bins: a sample of the rows tells how many groups there would be.
    for width in _BINS_PER_UNIT:
        ((name, query),) = calibrator_queries(layer, width).items()
        if width == _BINS_PER_UNIT[-1]:
            break
        sample = log_sums(log, {name: num_groups(query)}, selection)
        if SAMPLED * len(sample.table(name)["rows"]) <= _MOST_CELLS:
            break
    return log_sums(log, {name: query}, selection, verbose)


def _convert_to_counts(
    table: dict[str, np.ndarray], edges: np.ndarray, weights_are: str
) -> tuple[dict[str, np.ndarray], float]:
    """The sums of a table in numbers of rows, and the weight of one row.

    Raises if a row is in one of the end bins, which also hold all logits farther out.
    """
    # Bins are numbered from the middle, so the end bins are `last` and `-last - 1`.
    last = len(edges) // 2 - 1
    if (is_far := np.isin(table["key_bin"], (last, -last - 1))).any():
        raise ValueError(
            f"Logits must be within ±{math.floor(edges[-2]):,} for a fit to sums. Received: "
            f"{table['rows'][is_far].sum():.0f} rows with others. {FAR_LOGITS_ADVICE}"
        )
    weight = table["negatives_0"] + table["positives_0"]
    squares = table["squares"]
    if weights_are == "counts":
        check_counts(weight, "sums of weights")
        check_counts(squares, "sums of squared weights")
        return table, 1.0
    # `Σ w² / Σ w` is the weight of one row if weights are known up to a factor.
    unit = float(squares.sum() / weight.sum()) if squares.sum() else 1.0
    sums = [name for name in table if name.startswith(("negatives_", "positives_"))]
    return {**table, **{name: table[name] / unit for name in sums}}, unit


def _build_histogram(sums: LogSums, weights_are: str) -> LogitHistogram:
    table, unit = _convert_to_counts(sums.table(_HISTOGRAM), bin_edges(), weights_are)
    moments = np.zeros((2, NUM_BINS, 3))
    for label, name in enumerate(("negatives", "positives")):
        columns = [table[f"{name}_{power}"] for power in range(3)]
        moments[label, table["key_bin"] + NUM_BINS // 2] = np.stack(columns, axis=1)
    num_rows = moments[..., 0].sum() if weights_are == "counts" else sums.num_rows
    return LogitHistogram(moments, float(num_rows), unit=unit)


def _expand_to_rows(table: dict[str, np.ndarray], centres: np.ndarray) -> tuple[np.ndarray, ...]:
    """One or two rows for each group and label: their logits, labels, weights and groups.

    They have the weight of the group's rows, and the mean and variance of their logits. If labels
    are shares, they have the group's share of positives.
    """
    sums = np.array(
        [[table[f"{name}_{n}"] for n in range(3)] for name in ("negatives", "positives")]
    )
    label = np.array([0.0, 1.0])[:, None]
    total = sums.sum(axis=0)
    # Soft labels of counted rows: a group becomes rows with its share of positives as label, since
    # the sums of labels are no counts.
    if are_counts(total[0]) and not are_counts(sums[1, 0]):
        # Clip, as rounding may take a share out of [0, 1].
        label = np.clip(sums[1:, 0] / np.maximum(total[0], 1e-9), 0.0, 1.0)
        sums = total[None]
    # Each pair of label and group with weight becomes one row or two.
    kind, group = np.nonzero(sums[:, 0] > 0)
    label = np.broadcast_to(label, sums[:, 0].shape)[kind, group]
    weight, first, second = sums[kind, :, group].T
    # Moments about the centre of the bin give mean and standard deviation without cancellation.
    offset = first / weight
    spread = np.sqrt(np.maximum(second / weight - offset**2, 0.0))
    mean = centres[table["key_bin"][group] + len(centres) // 2] + offset
    # A smaller spread is a rounding error of equal logits, for which one row is enough.
    is_pair = (table["rows"][group] > 1) & (spread > 1e-7)
    # `interval` needs counts, and halves of an odd number would be none: so one row may be heavier.
    lower = np.where(weight >= 2, np.floor(weight / 2), weight / 2)
    # For weights w₁ and w₂ and the spread s, rows at `mean - s √(w₂/w₁)` and `mean + s √(w₁/w₂)`
    # have the mean and the variance of the group.
    step = np.sqrt((weight - lower) / lower)
    steps = np.concatenate([np.where(is_pair, -step, 0.0), 1 / step[is_pair]])
    weights = np.concatenate([np.where(is_pair, lower, weight), (weight - lower)[is_pair]])
    source = np.concatenate([np.arange(len(weight)), np.flatnonzero(is_pair)])
    return mean[source] + steps * spread[source], label[source], weights, group[source]


def _read_feature(
    values: np.ndarray, feature: str, fields: Fields, numeric: Collection[str]
) -> np.ndarray:
    """The values of a log's column as a feature: numbers, or strings ("" if missing).

    Ids become whole numbers, even if a CSV file holds them as texts; a missing id is -1. A
    `StringLookup` gets texts.
    """
    if feature in numeric:
        return np.asarray(numbers_in_float32(numbers_of(values, feature), feature))
    ids = whole_numbers(values)
    are_ids = isinstance(fields.get(feature), int | keras.layers.IntegerLookup)
    # Only a column of objects holds texts: looking for them takes time.
    texts = [v for v in values.tolist() if isinstance(v, str)] if values.dtype == object else []
    if are_ids and ids is None:
        raise ValueError(
            f"The field {feature!r} must hold whole numbers, the ids that the layer knows. "
            f"Received: {texts[:3] or values[:3].tolist()}."
        )
    if values.dtype.kind == "f":  # a missing value makes floats of a column of ids
        return np.where(np.isnan(values), -1.0, values)
    takes_texts = isinstance(fields.get(feature), keras.layers.StringLookup)
    if values.dtype != object and not takes_texts:
        return values
    # A CSV file or a mixed column: read ids if all values are ids, else keep texts.
    if ids is not None and (are_ids or not (texts or takes_texts)):
        return ids
    return np.array(["" if value is None else str(value) for value in values.tolist()], object)
