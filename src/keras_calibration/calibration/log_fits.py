"""fit_calibrator, update_calibrator: calibrators fitted to a scored log, without its rows."""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import numpy as np

from calibration_records._check import share
from calibration_records.logs import LogSums, ScoredLog, log_sums
from calibration_records.logs.query import SAMPLED, Query, logit_bins, num_groups
from keras_calibration._rows.checks import check_rows
from keras_calibration._rows.columns import take
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import check_counts, check_weights_are
from keras_calibration._solvers.logit_histogram import (
    BINS_PER_UNIT,
    FAR_LOGITS_ADVICE,
    NUM_BINS,
    LogitHistogram,
    bin_edges,
)
from keras_calibration.calibration.log_rows import (
    SECONDS_OF_A_DAY,
    feature_values,
    fit_to_rows,
    selection_of,
)
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ids import numeric_names
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.histogram_head import HistogramHead

_CELLS, _HISTOGRAM = "cells/", "histogram"
# Bins of a logit unit, tried until there are at most so many groups of rows.
_BINS_PER_UNIT = (BINS_PER_UNIT, 16, 4, 1)
_MOST_CELLS = 1 << 21


def fit_calibrator(
    layer: Head,
    log: ScoredLog | LogSums,
    verbose: int = 1,
    *,
    weights_are: str = "importance",
) -> FitSummary:
    """Fits a head to a scored log of any size.

    - A head with `update` (`BiasCorrection`, `TemperatureScaling`, `PlattScaling`, `ILPS`, …) needs
      a histogram of the logits by label: one pass. The fit is that of `layer.fit` to all rows,
      except that knots lie on multiples of 1/64.
    - `FieldBias`, `FieldILPS` and all other layers with a direct fit are fitted to groups of rows
      that have the same field values and nearly the same logit, each represented by two rows with
      the group's mean and variance of the logit and its share of positives. Logits are divided into
      64 bins a unit. A head that follows time is fitted to such groups of each day in UTC, by the
      log's `timestamp`.
    - If there are more than two million groups, as with many fields or numeric columns, `FieldBias`
      is fitted to the rows themselves. They are copied once, numbered, into the folder for
      temporary files (`TMPDIR`), in up to 200 bytes each; the fit reads them a million at a
      time. It is that of `layer.fit`, except that knots of numeric columns are those of two million
      rows. Other heads are fitted to groups of 16, 4 or 1 bins a unit, from which offsets differ
      from those of a fit to all rows, by less than their standard errors.

    Args:
        layer: The head. Its features are columns of the log.
        log: The log, or the sums of `calibrator_queries`. Columns named in its `fields` are not
            needed.
        verbose: 1 shows a progress bar, 0 does not.
        weights_are: What the log's weights are: `"importance"`, known up to a common factor, or
            `"counts"` of rows, see `Head.fit`.

    Returns:
        The `FitSummary`; its log losses are those of the groups.

    Raises:
        ValueError: If the layer has no direct fit, a row is invalid, a feature is missing, all
            labels are of one class, or a logit is beyond ±16295. The layer is then unchanged.

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
    sums = log if isinstance(log, LogSums) else _fine_sums(layer, log, verbose)
    if sums is None:
        return fit_to_rows(
            cast(FieldBias, layer), _read_by(layer, cast(ScoredLog, log)), weights_are, verbose
        )
    if layer.needs_histogram_alone:
        return cast(HistogramHead, layer).fit_sums(_histogram(sums, weights_are))
    rows = _rows_of(layer, sums, weights_are, both_classes=True)
    return _of_all_rows(layer, layer.fit_checked(rows), sums)


def _of_all_rows(layer: Head, summary: FitSummary, sums: LogSums) -> FitSummary:
    """The summary of a fit to groups, with the number of rows in them."""
    summary = dataclasses.replace(summary, num_rows=sums.num_rows)
    layer.remember_fit(summary)
    return summary


def _rows_of(layer: Head, sums: LogSums, weights_are: str, both_classes: bool) -> Rows:
    """Rows that stand for the groups of a log."""
    (name,) = (name for name in sums.names if name.startswith(_CELLS))
    table, bins_per_unit = sums.table(name), int(name.removeprefix(_CELLS))
    edges = bin_edges(bins_per_unit)
    _refuse_far_logits(table, edges)
    table, _ = _counted(table, weights_are)
    logits, labels, weights, group = _pseudo_rows(table, 0.5 * (edges[:-1] + edges[1:]))
    vocabularies = getattr(layer, "fields", {})
    numeric = numeric_names(layer.field_readers())
    features = {}
    for place, feature in enumerate(layer.feature_names or ()):
        values = table[f"key_value_{place}"]
        features[feature] = feature_values(values, feature, vocabularies, numeric)[group]
    rows = check_rows(logits, labels, weights, both_classes=both_classes)
    if layer.follows_time:
        days = np.asarray(table["key_period"])[group] / SECONDS_OF_A_DAY
        rows = dataclasses.replace(rows, times=days, time_unit="day")
    return layer.with_features(rows, features)


def update_calibrator(
    layer: Head,
    log: ScoredLog | LogSums,
    forget: float = 0.0,
    verbose: int = 1,
    *,
    weights_are: str = "importance",
) -> FitSummary:
    """Adds the rows of a log to those of earlier fits, as the head's `update`.

    Other heads with a direct fit have no `update`: keep the `LogSums` of `calibrator_queries`, add
    those of the new rows, and call `fit_calibrator` with the sum.

    Args:
        layer: A head with `update`: `FieldBias`, or a calibrator of logits alone, such as `ILPS`.
        log: The log of the new rows, or its sums.
        forget: Share of the weight of all earlier rows to drop first, in [0, 1].
        verbose: 1 shows a progress bar, 0 does not.
        weights_are: What the log's weights are, see `fit_calibrator`.

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
    share("forget", forget, of=": it is the share of the old weight to drop", ends="01")
    layer.check_update()
    sums = log if isinstance(log, LogSums) else _sums(layer, log, verbose)
    if layer.needs_histogram_alone:
        return cast(HistogramHead, layer).update_sums(_histogram(sums, weights_are), forget)
    rows = _rows_of(layer, sums, weights_are, both_classes=False)
    return _of_all_rows(layer, layer.update_checked(rows, forget), sums)


def calibrator_queries(layer: Head, bins_per_unit: int = 64) -> dict[str, Query]:
    """The sums that `fit_calibrator` needs of a log, for `logs.log_sums`.

    Args:
        layer: The head.
        bins_per_unit: Number of bins of a unit of the logit, for heads without `update`.

    Raises:
        ValueError: If the layer has no direct fit.

    Example:
        >>> from keras_calibration.layers import FieldBias, ILPS
        >>> list(calibrator_queries(ILPS())), list(calibrator_queries(FieldBias({"site": 9})))
        (['histogram'], ['cells/64'])
    """
    _check_head(layer)
    if layer.needs_histogram_alone:
        return {_HISTOGRAM: logit_bins(_BINS_PER_UNIT[0])}
    features = layer.feature_names
    if features is None:
        raise ValueError(f"It is not known which features {layer!r} reads.")
    query = logit_bins(bins_per_unit, features)
    return {f"{_CELLS}{bins_per_unit}": query.by_period() if layer.follows_time else query}


def _check_head(layer: Head) -> None:
    if not isinstance(layer, Head) or not layer.has_direct_fit:
        raise ValueError(f"Argument `layer` must be a head with a direct fit. Received: {layer!r}.")


def _read_by(layer: Head, log: ScoredLog) -> ScoredLog:
    """The log with the features of the head as its fields."""
    if layer.follows_time and log.timestamp is None:
        raise ValueError(
            f"Argument `log` must name its column of times, because this {type(layer).__name__} "
            "follows time. Received: timestamp=None. Pass ScoredLog(…, timestamp=…)."
        )
    return dataclasses.replace(log, fields=tuple(layer.feature_names or ()))


def _has_many_groups(layer: Head, log: ScoredLog, bins_per_unit: int) -> bool:
    """Whether there are more groups of rows than a fit is to take, by a sample of them."""
    log, (query,) = _read_by(layer, log), calibrator_queries(layer, bins_per_unit).values()
    sample = log_sums(log, {"groups": num_groups(query)}, selection_of(layer.follows_time))
    return SAMPLED * len(sample.table("groups")["rows"]) > _MOST_CELLS


def _fine_sums(layer: Head, log: ScoredLog, verbose: int) -> LogSums | None:
    """The sums of a log; None if there are too many, and the layer can be fitted to the rows."""
    if layer.needs_histogram_alone or not layer.fits_stored_rows:
        return _sums(layer, log, verbose)
    finest = _BINS_PER_UNIT[0]
    return None if _has_many_groups(layer, log, finest) else _sums(layer, log, verbose, finest)


def _sums(layer: Head, log: ScoredLog, verbose: int, bins_per_unit: int | None = None) -> LogSums:
    """The sums of a log, in bins that make few groups unless their width is given."""
    if bins_per_unit is None and not layer.needs_histogram_alone:
        widths = (each for each in _BINS_PER_UNIT[:-1] if not _has_many_groups(layer, log, each))
        bins_per_unit = next(widths, _BINS_PER_UNIT[-1])
    queries = calibrator_queries(layer, bins_per_unit or _BINS_PER_UNIT[0])
    return log_sums(_read_by(layer, log), queries, selection_of(layer.follows_time), verbose)


def _refuse_far_logits(table: dict[str, np.ndarray], edges: np.ndarray) -> None:
    """Raises if a row is in one of the end bins, which also hold all logits farther out."""
    last = len(edges) // 2 - 1
    is_far = np.isin(table["key_bin"], (last, -last - 1))
    if is_far.any():
        raise ValueError(
            f"Logits must be within ±{math.floor(edges[-2]):,} for a fit to sums. Received: "
            f"{table['rows'][is_far].sum():.0f} rows with others. {FAR_LOGITS_ADVICE}"
        )


def _counted(table: dict[str, np.ndarray], weights_are: str) -> tuple[dict[str, np.ndarray], float]:
    """The sums of a table, of weights that are numbers of rows, and the weight of one row."""
    check_weights_are(weights_are)
    parts = [f"{label}_{power}" for label in ("negatives", "positives") for power in range(3)]
    total, squares = table["negatives_0"].sum() + table["positives_0"].sum(), table["squares"].sum()
    if weights_are == "counts":
        check_counts(table["negatives_0"] + table["positives_0"], "sums of weights")
        check_counts(table["squares"], "sums of squared weights")
        return table, 1.0
    unit = float(squares / total) if squares else 1.0
    return {**table, **{name: table[name] / unit for name in parts}}, unit


def _histogram(sums: LogSums, weights_are: str) -> LogitHistogram:
    table = sums.table(_HISTOGRAM)
    _refuse_far_logits(table, bin_edges())
    table, unit = _counted(table, weights_are)
    moments = np.zeros((2, NUM_BINS, 3))
    places = table["key_bin"] + NUM_BINS // 2
    for label, name in enumerate(("negatives", "positives")):
        for power in range(3):
            moments[label, places, power] = table[f"{name}_{power}"]
    return LogitHistogram(moments, float(sums.num_rows), unit=unit)


def _pseudo_rows(
    table: dict[str, np.ndarray], centres: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and weights of two rows for each group, or one; and the group of each.

    They have the group's weight, mean and variance of the logit, number of positives and, unless a
    label would leave [0, 1], its covariance of label and logit.
    """
    weight = table["negatives_0"] + table["positives_0"]
    used = weight > 0
    table = take(table, used)
    weight = weight[used]
    offset = (table["negatives_1"] + table["positives_1"]) / weight
    variance = (table["negatives_2"] + table["positives_2"]) / weight - offset**2
    spread = np.sqrt(np.maximum(variance, 0.0))
    mean = centres[table["key_bin"] + len(centres) // 2] + offset
    label = np.clip(table["positives_0"] / weight, 0.0, 1.0)
    covariance = table["positives_1"] / weight - label * offset
    # Below, the variance is rounding.
    is_pair = (table["rows"] > 1) & (spread > 1e-7)
    tilt = np.divide(covariance, spread, out=np.zeros_like(spread), where=is_pair)
    # Halves of an odd number of rows would not be counts, which `interval` asks for.
    first = np.where(weight >= 2, np.floor(weight / 2), weight / 2)
    weights = [np.where(is_pair, first, weight), (weight - first)[is_pair]]
    # So far from the mean that mean and variance of the two are those of the group.
    step = np.sqrt((weight - first) / first)
    room = np.minimum(label, 1 - label) * np.minimum(step, 1 / step)
    tilt = np.clip(tilt, -room, room)
    steps = np.concatenate([np.where(is_pair, -step, 0.0), 1 / step[is_pair]])
    group = np.concatenate([np.arange(len(weight)), np.flatnonzero(is_pair)])
    logits = mean[group] + steps * spread[group]
    labels = np.clip(label[group] + steps * tilt[group], 0.0, 1.0)  # rounding may leave the range
    return logits, labels, np.concatenate(weights), np.flatnonzero(used)[group]
