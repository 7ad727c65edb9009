"""multicalibration_error: the calibration error of the worst segment, with its significance."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import at_least, integer
from calibration_records._columns import by_name, refuse_repeated, warn_of_other_order
from calibration_records._figures import decimals_of, significant
from calibration_records._text import ShownAsText, grid
from keras_calibration._rows.columns import in_place_of_names
from keras_calibration._rows.groups import with_groups
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.scored_rows import scored_rows
from keras_calibration._rows.weights import check_counts, check_weights_are
from keras_calibration._solvers.cumulative_error import (
    SegmentFigures,
    correlation_in_groups,
    figures_in_folds,
)
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
        rates = (self.mean_prediction, self.observed_rate, self.error)
        predicted, observed, error = (significant(rate, 4) for rate in rates)
        return (
            f"{self.name}: {self.num_rows:,} rows, predicted {predicted}, observed {observed}, "
            f"error {error} ({self.deviations:.1f} standard deviations)"
        )

    def _format_cells(self, places: int) -> list[str]:
        rates = (self.mean_prediction, self.observed_rate, self.error)
        figures = [f"{self.num_rows:,}", *(f"{rate:.{places}f}" for rate in rates)]
        return [self.name, *figures, f"{self.deviations:.1f}", f"{self.p_value:.2g}"]


class SegmentErrors(tuple[SegmentError, ...], ShownAsText):
    """Segments with their calibration errors; printing them gives a table.

    Example:
        >>> print(SegmentErrors([SegmentError("site = 3", 100, 0.2, 0.1, 0.1, 3.0, 0.005)]))
        segment   rows  predicted  observed   error  deviations  p-value
        site = 3   100     0.2000    0.1000  0.1000         3.0    0.005
    """

    def __str__(self) -> str:
        heads = ("segment", "rows", "predicted", "observed", "error", "deviations", "p-value")
        # Small rates need more decimals, the same in all rows.
        places = max(4, decimals_of(min((s.mean_prediction for s in self), default=0.0), 3))
        return "\n".join(grid([heads, *(segment._format_cells(places) for segment in self)]))


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
        error, detectable = (significant(e, 4) for e in (self.error, self.smallest_detectable))
        # Without a rarer class, there is no share of its rate.
        relative = (0 < self.rate < 1) * f" ({100 * self.relative_error:.1f} % of the rarer class)"
        lines = [
            f"Multicalibration error {error}{relative}, p-value {self.p_value:.2g} over "
            f"{len(self.segments):,} segments.",
            f"Smallest detectable error: {detectable}.",
        ]
        return "\n".join([*lines, str(SegmentErrors(shown))])


@np.errstate(under="ignore")
def multicalibration_error(
    labels: ArrayLike | str,
    predictions: ArrayLike | str,
    features: Mapping[str, ArrayLike],
    sample_weight: ArrayLike | str | None = None,
    *,
    numeric: Sequence[str] | None = None,
    max_depth: int = 2,
    min_rows: int = 100,
    min_positives: float = 10.0,
    from_logits: bool = False,
    groups: ArrayLike | str | None = None,
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

    With `groups`, such as the rows of a customer, `σ_S` allows for dependent rows: if the residuals
    `(y - p) / sqrt(p (1 - p))` of two rows of a group have the correlation ρ,
    `σ_S² = (1 - ρ) Σ_i a_i² + ρ Σ_g (Σ_{i ∈ g} a_i)²` with `a_i = w_i sqrt(p_i (1 - p_i)) / Σ w`.
    One ρ, not negative, is estimated from the pairs of rows of all groups. The p-value is that of
    `ECCE_S / σ_S`.

    All rows must be in memory. The rows are sorted once for each combination of columns. Equal
    predictions count together, so the order of the rows does not matter.

    Args:
        labels: Labels in [0, 1], shape `(n,)` or `(n, 1)`.
        predictions: Probabilities, or logits with `from_logits=True`, shape `(n,)` or `(n, 1)`.
        features: Column name → values, shape `(n,)` or `(n, 1)`: numbers, strings or booleans; or a
            data frame. Names of its columns may stand for the labels, predictions and weights;
            these columns form no segments.
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
        groups: Which rows belong together: an array (n,) of whole numbers or strings, or the name
            of a column of `features`, which then forms no segments.
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
    check_weights_are(weights_are)
    table = by_name(features)
    refuse_repeated("Argument `features` must have one column of each name", table)
    (labels, predictions, sample_weight, groups), used = in_place_of_names(
        table,
        (),
        labels=labels,
        predictions=predictions,
        sample_weight=sample_weight,
        groups=groups,
    )
    # The columns of these arguments form no segments.
    columns = {n: c for n, c in table.items() if n not in used} if used else table
    read = scored_rows(labels, predictions, sample_weight, columns, numeric)
    scored = read.probabilities(from_logits)
    (p,) = scored.predictions.values()
    counts = np.ones(len(p), np.int64)
    if weights_are == "counts":
        check_counts(scored.weights)
        counts = np.rint(scored.weights).astype(np.int64)
    warn_of_other_order(labels=labels, groups=groups)
    rows = Rows(p, scored.labels, scored.weights, scored.columns)
    rows = with_groups(rows, groups, table, scored.counted)
    return _measure_error(rows, counts, scored.numeric, max_depth, min_rows, min_positives)


def error_in_folds(rows: Rows, numeric: Sequence[str], max_depth: int) -> MulticalibrationError:
    """`multicalibration_error` of cross-fitted predictions: the error of a segment in each fold.

    The rows of a fold were in the fits of the other folds, so that the errors of a segment in the
    folds would cancel. So each fold gets its own ECCE and p-value. The error of a segment is the
    weighted mean over the folds, and Fisher's method combines the p-values.

    Pass rows with probabilities in place of logits, with weights, and with the fold of each row.
    """
    counts = np.rint(rows.meant_counts).astype(np.int64)
    return _measure_error(rows, counts, numeric, max_depth)


def _measure_error(
    rows: Rows,
    counts: np.ndarray,
    numeric: Sequence[str],
    max_depth: int,
    min_rows: int = 100,
    min_positives: float = 10.0,
) -> MulticalibrationError:
    """The error of rows with probabilities in place of logits, and the count of each (n,)."""
    # Sort once by the prediction: the rows of each segment are then in the order of its sum C_k.
    order = np.argsort(rows.logits, kind="stable")
    rows = rows.take(order)
    counts = counts[order]
    columns = [
        range_segments(name, values.reshape(-1), counts)
        if name in numeric
        else value_segments(name, values.reshape(-1), min_rows, counts)
        for name, values in rows.features.items()
    ]
    y, p, group = rows.labels, rows.logits, rows.groups
    # One correlation ρ for all segments, estimated from the pairs of rows within groups.
    dependence = None if group is None else (group, correlation_in_groups(y, p, group, counts))
    figures_of = functools.partial(
        figures_in_folds,
        y,
        p,
        rows.row_weights,
        counts=counts,
        fold=rows.fold,
        dependence=dependence,
    )
    all_rows = figures_of(np.zeros(len(y), np.int64))
    segments = _list_segments(all_rows, ["all rows"])
    overall = segments[0]
    for chosen, ids in combinations(columns, max_depth):
        figures = figures_of(ids, min_rows=min_rows, min_positives=min_positives)
        parts = [[column.names[i] for i in column.ids[figures.first_row]] for column in chosen]
        segments += _list_segments(
            figures, [", ".join(names) for names in zip(*parts, strict=True)]
        )
    # The worst in standard deviations first. Its ECCE / σ, times the σ of all rows, is the error.
    # Bonferroni's correction multiplies the smallest p-value by the number of segments.
    segments.sort(key=lambda segment: (-segment.deviations, -segment.num_rows))
    most = segments[0].deviations
    deviation = float(all_rows.deviation[0])
    return MulticalibrationError(
        error=most * deviation if np.isfinite(most) else most,
        p_value=min(1.0, len(segments) * min(segment.p_value for segment in segments)),
        smallest_detectable=_DETECTABLE * deviation,
        rate=overall.observed_rate,
        overall=overall,
        segments=tuple(segments),
    )


def _list_segments(figures: SegmentFigures, names: Sequence[str]) -> list[SegmentError]:
    rates = (figures.num_rows, figures.mean_prediction, figures.observed_rate)
    columns = (*rates, figures.error, figures.deviations, figures.p_value)
    return [SegmentError(*row) for row in zip(names, *(c.tolist() for c in columns), strict=True)]
