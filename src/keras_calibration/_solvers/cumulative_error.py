"""The cumulative calibration error (ECCE) of many segments at once, and its distribution."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

# Smaller differences are rounding.
_SMALLEST_ERROR = 1e-12
_ROUNDING = 1e-9
_SMALLEST_P_VALUE = 1e-300


@dataclass(frozen=True)
class SegmentFigures:
    """Figures of segments, each of shape `(segments,)`.

    Args:
        first_row: A row of the segment.
        num_rows: Number of rows.
        mean_prediction: Weighted mean of the predictions.
        observed_rate: Weighted mean of the labels.
        error: The ECCE.
        deviation: Its standard deviation σ if the predictions are correct.
        deviations: The ECCE in units of σ; infinite where predictions of 0 and 1 are refuted.
        p_value: Probability of an ECCE at least as large if the predictions are correct.
    """

    first_row: np.ndarray
    num_rows: np.ndarray
    mean_prediction: np.ndarray
    observed_rate: np.ndarray
    error: np.ndarray
    deviation: np.ndarray
    deviations: np.ndarray
    p_value: np.ndarray


def figures_in_folds(
    labels: np.ndarray,
    predictions: np.ndarray,
    weights: np.ndarray,
    ids: np.ndarray,
    *,
    counts: np.ndarray,
    fold: np.ndarray | None = None,
    dependence: tuple[np.ndarray, float] | None = None,
    min_rows: int = 1,
    min_positives: float = 0.0,
) -> SegmentFigures:
    """`segment_figures`; with the fold of each row (n,), from the ECCE of each segment and fold.

    A segment then has the mean of the errors of its folds, weighted by their weights. By Fisher's
    method, `-2 Σ_f log p_f` of k folds has the χ² distribution with 2 k degrees of freedom if the
    predictions are correct, which gives the p-value. The deviations are how many σ a single ECCE
    with this p-value has.
    """
    columns = (labels, predictions, weights)
    figures = segment_figures(*columns, ids, min_rows, min_positives, counts, dependence)
    if fold is None or not len(figures.first_row):
        return figures
    # Each fold of a segment is a cell with its own ECCE. Small segments are left out by now: their
    # cells must not come back.
    segments = ids[figures.first_row]
    numbers = np.flatnonzero(np.isin(ids, segments))
    y, p, w, n = (column[numbers] for column in (*columns, counts))
    if dependence is not None:
        dependence = (dependence[0][numbers], dependence[1])
    segment = np.searchsorted(segments, ids[numbers])
    cells = segment * (int(fold.max()) + 1) + fold[numbers]
    by_fold = segment_figures(y, p, w, cells, counts=n, dependence=dependence)
    of_segment = segment[by_fold.first_row]
    totals = np.bincount(cells, w)
    totals = totals[totals > 0]
    # Fisher's method: the p-values of the folds are independent, as no row is in two folds. The
    # bound keeps the logarithm finite.
    log_p_values = np.log(np.maximum(by_fold.p_value, _SMALLEST_P_VALUE))
    half = -np.bincount(of_segment, log_p_values)[:, None]
    # The statistic is 2 h. Its χ² tail with 2 k degrees of freedom is `exp(-h) Σ_{j < k} hʲ / j!`.
    # Far out, only the logarithm is above 0.
    num_folds = np.bincount(of_segment)
    power = np.arange(num_folds.max())
    terms = special.xlogy(power, half) - special.gammaln(power + 1)
    log_p_value = special.logsumexp(terms, axis=1, b=power < num_folds[:, None]) - half[:, 0]
    return replace(
        figures,
        error=np.bincount(of_segment, totals * by_fold.error) / np.bincount(of_segment, totals),
        # The deviation x with this p-value, by the leading term of `brownian_range_tail`, 8 Φ(-x).
        deviations=np.maximum(-special.ndtri_exp(log_p_value - np.log(8)), 0.0),
        p_value=np.exp(log_p_value),
    )


def segment_figures(
    labels: np.ndarray,
    predictions: np.ndarray,
    weights: np.ndarray,
    ids: np.ndarray,
    min_rows: int = 1,
    min_positives: float = 0.0,
    counts: np.ndarray | None = None,
    dependence: tuple[np.ndarray, float] | None = None,
) -> SegmentFigures:
    """The figures of every segment that is large enough.

    For the rows i of a segment in ascending order of their predictions p, with `W = Σ w`:

    - `C_k = Σ_{i ≤ k} w_i (y_i - p_i) / W`, at every k after which the prediction changes, and
      `C_0 = 0`. Equal predictions count together, so their order does not matter;
    - `ECCE = max C - min C`;
    - `σ² = Σ w_i² p_i (1 - p_i) / W²`. A row that stands for n_i rows has `w_i² / n_i` there.

    Args:
        labels: Labels, shape `(n,)`, in ascending order of the predictions.
        predictions: Probabilities, shape `(n,)`, ascending.
        weights: Positive weights, shape `(n,)`.
        ids: Segment of each row, whole numbers, shape `(n,)`.
        min_rows: Smallest number of rows of a segment.
        min_positives: Smallest expected number of positives, and of negatives. Labels must not
            decide: segments that enter by observed positives would hold too many positives by
            chance.
        counts: How many rows each row stands for, shape `(n,)`; one by default.
        dependence: The group of each row, shape `(n,)`, and the correlation in a group
            (`correlation_in_groups`). The variance is then larger by the factor
            `1 - ρ + ρ Σ_g (Σ_{i ∈ g} a_i)² / Σ_i a_i²`, with a the standard deviations of the rows.
    """
    counts = np.ones(len(ids), np.int64) if counts is None else counts
    # NumPy sorts integers of 16 bits by radix, several times faster.
    order = np.argsort(ids.astype(np.min_scalar_type(ids.max())), kind="stable")
    numbers = np.stack([counts, counts * predictions])[:, order]
    order = order[_are_large_enough(ids[order], numbers, min_rows, min_positives)]
    if not len(order):
        return SegmentFigures(order, order, *np.zeros((6, 0)))
    ids, y, p, w, counts = (part[order] for part in (ids, labels, predictions, weights, counts))
    # Rows now lie segment by segment, in each by ascending prediction, so that `reduceat` sums
    # whole segments, and one cumulative sum serves all of them.
    changes = ids[1:] != ids[:-1]
    starts = np.flatnonzero(np.r_[True, changes])
    lengths = np.diff(np.r_[starts, len(ids)])
    # Shares before sums: a segment of small weights keeps its digits beside one of large weights.
    share = w / np.repeat(np.add.reduceat(w, starts), lengths)
    # 1 up to rounding, the same as in the sum of the labels: a rate of 1 is exactly 1.
    ones = np.add.reduceat(share, starts)
    residual = share * (y - p)
    # One sum runs through all segments; subtracting its value before each makes C start at 0.
    cumulative = np.cumsum(residual)
    cumulative -= np.repeat(cumulative[starts] - residual[starts], lengths)
    # C counts only where the prediction changes: between ties, it would depend on their order.
    is_end = np.r_[changes | (p[1:] != p[:-1]), True]
    error, rises = _find_ranges(cumulative[is_end], np.cumsum(is_end)[starts] - is_end[starts])
    error = np.where(error < _SMALLEST_ERROR, 0.0, error)
    # σ² of the sum, if each label is a Bernoulli draw with its prediction as probability.
    variance = np.add.reduceat(share**2 / counts * p * (1 - p), starts)
    factor = np.ones(len(starts))
    if dependence is not None:
        # The design effect: correlated rows of a group add up, `(Σ a)²` instead of `Σ a²`. `pairs`
        # are the groups within segments, as a group may lie in several.
        segment = np.repeat(np.arange(len(starts)), lengths)
        pairs, place = np.unique([segment, dependence[0][order]], axis=1, return_inverse=True)
        sums = np.bincount(place.reshape(-1), share * np.sqrt(p * (1 - p)))
        together = np.bincount(pairs[0], sums**2, len(starts))
        ratio = np.divide(together, variance, out=np.ones_like(variance), where=variance > 0)
        factor += dependence[1] * np.maximum(ratio - 1, 0)
    # Without variance, all predictions are 0 or 1: a single other label refutes them for certain.
    deviation = np.sqrt(factor * variance)
    deviations = np.divide(
        error, deviation, out=np.where(error > 0, np.inf, 0.0), where=deviation > 0
    )
    # The largest possible step towards the end of the range that comes later: a label of 1 moves C
    # up by 1 - p, a label of 0 moves it down by p.
    steps = share / counts * np.where(np.repeat(rises, lengths), 1 - p, p)
    # With b multiplied by the factor, as σ² is, u in Bennett's inequality stays the same, and x
    # falls like ECCE / σ.
    largest_step = factor * np.maximum.reduceat(steps, starts)
    return SegmentFigures(
        first_row=order[starts],
        num_rows=np.add.reduceat(counts, starts),
        mean_prediction=np.add.reduceat(share * p, starts) / ones,
        observed_rate=np.add.reduceat(share * y, starts) / ones,
        error=error,
        deviation=deviation,
        deviations=deviations,
        p_value=p_values(error, deviation, largest_step),
    )


def correlation_in_groups(
    labels: np.ndarray, predictions: np.ndarray, groups: np.ndarray, counts: np.ndarray
) -> float:
    """The mean correlation of the residuals of two rows of a group, from 0 to 1.

    It is the mean of the correlations within groups of at least two rows, weighted by their rows.
    The standardised residuals of wrong predictions contain their error, which hardly changes the
    correlation.

    Example:
        >>> labels, one = np.array([0, 0, 1, 1]), np.ones(4)
        >>> correlation_in_groups(labels, one / 2, np.array([0, 0, 1, 1]), one)
        1.0
    """
    variance = predictions * (1 - predictions)
    residuals = (labels - predictions) / np.sqrt(np.where(variance > 0, variance, np.inf))
    # The products of all pairs i ≠ j of a group add up to `(Σ r)² - Σ r²`, n (n - 1) of them.
    number, sums, squares = (
        np.bincount(groups, counts * power) for power in (1, residuals, residuals**2)
    )
    others = number - 1
    pairs = (sums**2 - squares)[others > 0] / others[others > 0]
    return float(np.clip(pairs.sum() / max(number[others > 0].sum(), 1), 0.0, 1.0))


def _find_ranges(values: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Range of each segment's values and 0, and whether its upper end comes after the lower one."""
    counts = np.diff(np.r_[starts, len(values)])
    ends, places = [], []
    # Maximum, then minimum as the maximum of the negated values. The value 0 before the first row
    # has the place -1.
    for sign in (1, -1):
        end = np.maximum.reduceat(sign * values, starts)
        # If several places reach the end up to rounding, the last one counts.
        is_there = sign * values > np.repeat(end, counts) - _SMALLEST_ERROR
        last = np.maximum.reduceat(np.where(is_there, np.arange(len(values)), -1), starts)
        places.append(np.where(end > _SMALLEST_ERROR, last, -1))
        ends.append(np.maximum(end, 0.0))
    return ends[0] + ends[1], places[0] > places[1]


def _are_large_enough(
    ids: np.ndarray, numbers: np.ndarray, min_rows: int, min_positives: float
) -> np.ndarray:
    """Whether each row, in order of the segments, belongs to a segment that is large enough.

    `numbers` (2, n) has the rows and the expected positives for which each row stands.
    """
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    totals, positives = np.add.reduceat(numbers, starts, axis=1)
    # A margin, so that the rounding of a sum does not decide whether a segment enters.
    rarer = np.minimum(positives, totals - positives) * (1 + _ROUNDING)
    is_large = (totals >= min_rows) & (rarer >= min_positives)
    return np.repeat(is_large, np.diff(np.r_[starts, len(ids)]))


def p_values(error: np.ndarray, deviation: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Probability of an ECCE at least as large if the predictions are correct.

    Args:
        error: The ECCE of each segment.
        deviation: σ of each segment.
        largest: The largest possible step `b = w |y - p| / W` of the cumulative sum towards the end
            of its range that comes later: `w (1 - p) / W` upwards, `w p / W` downwards.

    The cumulative sum is then a random walk, and its range is close to that of a Brownian motion if
    there are many positives and negatives. If there are few, large steps towards the rarer class
    are more likely than that. By Bennett's inequality, a sum of terms of at most b, with variance
    σ², has the tail of a normal variable at `x = (σ / b) sqrt(2 h(b ECCE / σ²))` standard
    deviations, where `h(u) = (1 + u) log(1 + u) - u`. The p-value is the tail of the Brownian range
    at x, which is never above ECCE / σ.

    Reference:
        Boucheron, Lugosi, Massart, *Concentration Inequalities*, 2013, theorem 2.9.
    """
    positive = deviation > 0
    # Bennett's inequality with `u = b ECCE / σ²`.
    u = np.divide(largest * error, deviation**2, out=np.zeros_like(error), where=positive)
    series = u**2 * (1 / 2 - u / 6 + u**2 / 12)  # Taylor, where h would cancel
    h = np.where(u < 1e-3, series, (1 + u) * np.log1p(u) - u)
    scale = np.divide(deviation, largest, out=np.zeros_like(error), where=positive)
    infinite = np.where(error > 0, np.inf, 0.0)
    return brownian_range_tail(np.where(positive, scale * np.sqrt(2 * h), infinite))


def brownian_range_tail(x: ArrayLike) -> np.ndarray:
    """Probability that the range of a Brownian motion on [0, 1] is at least x.

    `8 Σ_k (-1)^(k - 1) k Φ(-k x)`, accurate also where it is tiny; for x below 1, where this series
    needs many terms, one minus `Σ_k (8 / x² + 2 / a_k²) exp(-2 a_k² / x²)`, `a_k = (k + ½) π`.

    Reference:
        Feller, *The Asymptotic Distribution of the Range of Sums of Independent Random Variables*,
        Annals of Mathematical Statistics 1951.
    """
    x = np.asarray(x, np.float64)[..., None]
    # Two series for one function: the first converges fast from x = 1 on and keeps the digits of
    # tiny tails, the second converges fast below 1.
    k = np.arange(1, 16)
    high = np.maximum(x, 1.0)
    tail = 8 * np.sum(np.where(k % 2, 1, -1) * k * special.ndtr(-k * high), axis=-1)
    a = (np.arange(4) + 0.5) * np.pi
    low = np.clip(x, 0.05, 1.0)  # below 0.05, the tail is 1
    below = np.sum((8 / low**2 + 2 / a**2) * np.exp(-2 * a**2 / low**2), axis=-1)
    return np.clip(np.where(x[..., 0] < 1, 1 - below, tail), 0.0, 1.0)
