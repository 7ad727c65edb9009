"""multicalibration_error: the calibration error of the worst segment, with its significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import (
    at_least,
    instance,
    integer,
    known,
    one_column,
    refused,
    same_rows,
)
from calibration_records._columns import (
    by_name,
    names_of,
    refuse_repeated,
    refuse_rows,
    warn_of_other_order,
)
from calibration_records._predictions import probabilities_of
from calibration_records._text import ShownAsText, grid
from keras_calibration._rows.checks import warn_if_swapped
from keras_calibration._rows.columns import as_array, flat_numbers, numbers_of
from keras_calibration._rows.labels import label_advice
from keras_calibration._rows.weights import check_counts, check_weights_are, rows_that_count
from keras_calibration._solvers.cumulative_error import SegmentFigures, p_values, segment_figures
from keras_calibration._solvers.segments import combinations, range_segments, value_segments

_DETECTABLE = 5  # standard deviations
_NUM_SHOWN = 10


@dataclass(frozen=True)
class SegmentError(ShownAsText):
    """The calibration error of a segment, part of a `MulticalibrationError`.

    Args:
        name: What the rows have in common, for example "site_id = 3, age ≤ 30"; or "all rows".
        num_rows: Number of rows with a positive weight; with counts as weights, their sum.
        mean_prediction: Mean predicted probability.
        observed_rate: Mean label.
        error: The ECCE of the segment (see `multicalibration_error`), in units of probability.
        deviations: The ECCE in units of its standard deviation under correct predictions.
        p_value: Probability of so large an ECCE under correct predictions, for this segment alone.
    """

    name: str
    num_rows: int
    mean_prediction: float
    observed_rate: float
    error: float
    deviations: float
    p_value: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.num_rows:,} rows, predicted {self.mean_prediction:.4g}, observed "
            f"{self.observed_rate:.4g}, error {self.error:.4g} "
            f"({self.deviations:.1f} standard deviations)"
        )

    def _cells(self) -> list[str]:
        rates = (self.mean_prediction, self.observed_rate, self.error)
        significance = [f"{self.deviations:.1f}", f"{self.p_value:.2g}"]
        return [self.name, f"{self.num_rows:,}", *(f"{rate:.4f}" for rate in rates), *significance]


class SegmentErrors(tuple[SegmentError, ...], ShownAsText):
    """Segments with their calibration errors; printing them gives a table.

    Example:
        >>> print(SegmentErrors([SegmentError("site = 3", 100, 0.2, 0.1, 0.1, 3.0, 0.005)]))
        segment   rows  predicted  observed   error  deviations  p-value
        site = 3   100     0.2000    0.1000  0.1000         3.0    0.005
    """

    def __str__(self) -> str:
        heads = ("segment", "rows", "predicted", "observed", "error", "deviations", "p-value")
        return "\n".join(grid([heads, *(segment._cells() for segment in self)]))


@dataclass(frozen=True)
class MulticalibrationError(ShownAsText):
    """The result of `multicalibration_error`; printing it gives a table of the worst segments.

    Args:
        error: The multicalibration error, in units of probability.
        p_value: Probability that correct predictions give any segment as significant as the most
            significant one.
        smallest_detectable: An error of five standard deviations. On these rows, smaller errors may
            be chance.
        rate: The mean label.
        overall: The calibration error of all rows, one of the segments.
        segments: All segments, those with most standard deviations first.
    """

    error: float
    p_value: float
    smallest_detectable: float
    rate: float
    overall: SegmentError
    segments: tuple[SegmentError, ...]

    @property
    def relative_error(self) -> float:
        """The error as a share of the rate of the rarer class; NaN with labels of one class."""
        return self.error / (min(self.rate, 1 - self.rate) or float("nan"))

    def __str__(self) -> str:
        shown = list(dict.fromkeys([*self.segments[:_NUM_SHOWN], self.overall]))
        lines = [
            f"Multicalibration error {self.error:.4g} ({self.relative_error:.1%} of the rarer "
            f"class), p-value {self.p_value:.2g} over {len(self.segments):,} segments.",
            f"Smallest detectable error: {self.smallest_detectable:.4g}.",
        ]
        return "\n".join([*lines, str(SegmentErrors(shown))])


def multicalibration_error(
    labels: ArrayLike,
    predictions: ArrayLike,
    features: Mapping[str, ArrayLike],
    sample_weight: ArrayLike | None = None,
    *,
    numeric: Sequence[str] | None = None,
    max_depth: int = 2,
    min_rows: int = 100,
    min_positives: float = 10.0,
    from_logits: bool = False,
    weights_are: str = "importance",
) -> MulticalibrationError:
    """Multicalibration error: how wrong the predictions are in the worst of many segments.

    The segments S are: all rows, all values of each column, and all combinations of values of up to
    `max_depth` columns. For the rows of a segment in ascending order of their predictions p,

    - `ECCE_S = max_k C_k - min_k C_k`, with `C_k = Σ_{i ≤ k} w_i (y_i - p_i) / Σ w` and `C_0 = 0`,
      is the largest error over any range of predictions, without bins;
    - `σ_S = sqrt(Σ w_i² p_i (1 - p_i)) / Σ w` is its standard deviation if the predictions are
      correct.

    The multicalibration error is `max_S (ECCE_S / σ_S) σ`, where σ is that of all rows. Segments
    are compared by standard deviations, so that a small segment must have a larger error.

    With correct predictions, `ECCE / σ` has the distribution of the range of a Brownian motion. It
    gives the p-value of a segment, corrected upwards by Bennett's inequality where positives are
    rare. The overall p-value is the smallest one times the number of segments (Bonferroni): with
    correct predictions, it is below 0.05 in at most 5 % of the data sets. It holds for rows that
    the predictions were not fitted to. With soft labels, p-values are too high.

    All rows must be in memory. The rows are sorted once for each combination of columns. Equal
    predictions count together, so the order of the rows does not matter.

    Args:
        labels: Labels in [0, 1], shape `(n,)` or `(n, 1)`.
        predictions: Probabilities, or logits with `from_logits=True`, shape `(n,)` or `(n, 1)`.
        features: Column name → values, shape `(n,)` or `(n, 1)`: numbers, strings or booleans; or a
            data frame.
        sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None. A common factor
            changes nothing, and rows of weight 0 are ignored.
        numeric: Names of the columns to cut into four ranges at their quartiles; missing values
            form a fifth. By default, these are the columns of floating-point numbers. Each value of
            the other columns is a segment.
        max_depth: Largest number of columns to combine.
        min_rows: Smallest number of rows of a segment. Values with fewer rows form one segment,
            "other values".
        min_positives: Smallest expected number of positives, `Σ p`, and of negatives, `Σ (1 - p)`,
            of a segment. Segments with fewer give the largest errors by chance. Labels do not count
            here, or chance would select segments with too many positives. If predictions may be far
            too low, pass less, for example 1: the p-values hold for any number.
        from_logits: Whether the predictions are logits.
        weights_are: What the weights are: `"importance"`, or `"counts"`. With counts, a row of
            weight 2 is two rows, and `σ_S = sqrt(Σ w_i p_i (1 - p_i)) / Σ w`.

    Returns:
        The error, its p-value, the smallest detectable error, and all segments, the worst first.

    Raises:
        ValueError: If there are no rows, arrays differ in length, or a value is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> site, age = rng.integers(0, 20, 20_000), rng.uniform(18, 80, 20_000)
        >>> predictions = rng.uniform(0.05, 0.3, 20_000)
        >>> true = np.where((site == 7) & (age < 33), 0.5 * predictions, predictions)
        >>> labels = rng.random(20_000) < true
        >>> result = multicalibration_error(labels, predictions, {"site": site, "age": age})
        >>> result.segments[0].name
        'site = 7, age ≤ 33.9399'

    Reference:
        Guy, Haimovich, Linder, Okati, Perini, Tax, Tygert, *Measuring multi-calibration*, arXiv
        2506.11251. By default, the package `mcgrad` forms segments of at most three values a column
        and does not correct the smallest p-value for their number.
    """
    integer("max_depth", max_depth, 1)
    integer("min_rows", min_rows, 1)
    at_least("min_positives", min_positives, 0)
    warn_of_other_order(
        labels=labels, predictions=predictions, features=features, sample_weight=sample_weight
    )
    y, p, w = _rows(labels, predictions, sample_weight, from_logits=from_logits)
    check_weights_are(weights_are)
    counts = np.ones(len(w), np.int64)
    if weights_are == "counts":
        check_counts(w)
        counts = np.rint(w).astype(np.int64)
    order = np.flatnonzero(w > 0)
    order = order[np.argsort(p[order], kind="stable")]
    columns = [
        range_segments(name, values[order], counts[order])
        if is_numeric
        else value_segments(name, values[order], min_rows, counts[order])
        for name, values, is_numeric in _columns(features, numeric, len(p))
    ]
    y, p, w, counts = y[order], p[order], w[order], counts[order]
    all_rows = segment_figures(y, p, w, np.zeros(len(y), np.int64), counts=counts)
    segments = _segments(all_rows, ["all rows"])
    overall = segments[0]
    for chosen, ids in combinations(columns, max_depth):
        figures = segment_figures(y, p, w, ids, min_rows, min_positives, counts)
        rows = figures.first_row
        parts = [[column.names[i] for i in column.ids[rows]] for column in chosen]
        segments += _segments(figures, [", ".join(names) for names in zip(*parts, strict=True)])
    segments.sort(key=lambda segment: (-segment.deviations, -segment.num_rows))
    most, deviation = segments[0].deviations, float(all_rows.deviation[0])
    error = most * deviation if np.isfinite(most) else most
    p_value = min(1.0, len(segments) * min(segment.p_value for segment in segments))
    rate, detectable = overall.observed_rate, _DETECTABLE * deviation
    return MulticalibrationError(error, p_value, detectable, rate, overall, tuple(segments))


def _segments(figures: SegmentFigures, names: Sequence[str]) -> list[SegmentError]:
    rates = (figures.num_rows, figures.mean_prediction, figures.observed_rate)
    columns = (*rates, figures.error, figures.deviations, p_values(figures))
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return [SegmentError(*row) for row in rows]


def _rows(
    labels: ArrayLike, predictions: ArrayLike, sample_weight: ArrayLike | None, from_logits: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities and weights as flat checked arrays of float64."""
    p = flat_numbers(predictions, "predictions")
    if not len(p):
        raise refused("predictions", "of one or more rows", predictions)
    y = _flat(numbers_of(labels, "Labels").astype(np.float64), "labels", len(p))
    w = np.ones(len(p))
    if sample_weight is not None:
        weights = numbers_of(sample_weight, "Weights").astype(np.float64)
        w = _flat(weights, "sample_weight", len(p))
    if not (np.isfinite(w) & (w >= 0)).all() or not w.any():
        raise refused("sample_weight", "finite and not negative, and not all 0", w)
    expected, advice = "Argument `labels` must be in [0, 1].", label_advice(y[w > 0])
    refuse_rows(~((y >= 0) & (y <= 1)), y, expected, advice, w > 0)
    if (numbers := rows_that_count(w)) is not None:
        p, y = p[numbers], y[numbers]
    warn_if_swapped(y, p)
    return y, probabilities_of(p, from_logits), w


def _columns(
    features: Mapping[str, ArrayLike], numeric: Sequence[str] | None, num_rows: int
) -> list[tuple[str, np.ndarray, bool]]:
    """Name and values of each column, and whether it is numeric."""
    features = by_name(features)
    refuse_repeated("Argument `features` must have one column of each name", features)
    instance("features", features, Mapping, "a mapping of column names to values, or a data frame")
    values = {
        name: _flat(as_array(column, repr(name)), f"features[{name!r}]", num_rows)
        for name, column in features.items()
    }
    kinds = {name: column.dtype.kind for name, column in values.items()}
    floats, numbers = ([n for n in kinds if kinds[n] in allowed] for allowed in ("f", "biuf"))
    numeric = floats if numeric is None else names_of(numeric)
    known("Argument `numeric` must name columns of numbers of `features`", numeric, numbers)
    return [(name, column, name in numeric) for name, column in values.items()]


def _flat(values: np.ndarray, name: str, num_rows: int) -> np.ndarray:
    one_column(name, values.shape)
    same_rows(name, len(values), num_rows, "prediction")
    return values.reshape(-1)
