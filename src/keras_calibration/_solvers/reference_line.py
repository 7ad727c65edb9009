"""The line that maps scores in any unit to nearly calibrated logits, on which the fits work.

A score that a user calls a logit may be the margin of a support vector machine, in thousandths, or
a credit score from 300 to 850. The fits assume logits: histograms have bins of 1/64, priors expect
slopes near 1. So each fit first maps the scores by a line `l' = a l + c`, fitted to the same rows.
It fits its curve to l' and expresses the result in l. Scores `b l + d` have the same l' as l, and
so get the same probabilities.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from keras_calibration._rows.line import IDENTITY, Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import fit_logistic, starting_bias
from keras_calibration._solvers.logit_histogram import LogitHistogram, logit_histogram
from keras_calibration._solvers.softmax_fit import fit_temperature

# Quantiles of the scores. Normal scores have them at -1, 0 and 1 standard deviation.
_SHARES = (0.16, 0.5, 0.84)
# Where the median lies on the bins, and how far scores spread there. Neither is round: round scores
# would lie on edges, where rounding decides the bin.
_MIDDLE, _SPREAD = 0.0061, 1.93
# Rows of the sample in which bounds of the quantiles are sought.
_SAMPLE_SIZE = 50_000
# Layers compute in float32, where closer scores are equal.
_LEAST_SPREAD = 1e-7
# Logits must differ, also if the score says nothing about the labels.
_SMALLEST_SLOPE = 0.05
# Precision of a prior about slope 1 on the bins, in units of summed log likelihood. It keeps the
# slope finite if a threshold separates the classes. The fit on the line may still be steeper.
_SLOPE_PRECISION = 10.0


def bins_of(logits: np.ndarray, weights: np.ndarray | None = None) -> Line:
    """The line that maps scores to the bins of a histogram, where they spread by about 2 about 0.

    The weighted median goes to about 0. The unit is the range of the 34 % of the weight next to the
    median, on its denser side, so that single far scores do not matter.

    Example:
        >>> line, other = bins_of(np.arange(9.0)), bins_of(7 * np.arange(9.0) + 100)
        >>> np.allclose(line(np.arange(9.0)), other(7 * np.arange(9.0) + 100))
        True
    """
    low, middle, high = _find_quantiles(logits, weights)
    least = _LEAST_SPREAD * abs(middle)
    # Take the denser side, where skewed scores lie close; a side of equal scores has no spread.
    spread = min((side for side in (middle - low, high - middle) if side > least), default=0.0)
    if not spread > least:  # most scores are equal
        spread = float(np.sqrt(np.average((logits - middle) ** 2, weights=weights)))
    spread = spread if spread > least else abs(middle) or 1.0
    return Line(_SPREAD / spread, _MIDDLE - _SPREAD * middle / spread)


def seen_as_logits(
    histogram: LogitHistogram, *, has_scale: bool = True, has_shift: bool = True
) -> LogitHistogram:
    """The histogram as a fit sees it: its logits mapped by a line that nearly calibrates them.

    The line is Platt's, under a weak prior. Without shift, it runs through 0. Without scale, the
    fit sees the logits themselves. With labels of one class, it sees the logits on the bins.
    """
    bins = histogram.bins
    if not has_scale:
        return replace(histogram, view=Line(1 / bins.scale, -bins.shift / bins.scale))
    # The fit sees the scores in units of their spread. Without a shift, the 0 of the scores has to
    # stay where it is, so the shift of the bins is taken back.
    view = IDENTITY if has_shift else Line(1.0, -bins.shift)
    plain = replace(histogram, view=view)
    if not (plain.positives > 0 and plain.negatives > 0):
        return plain
    columns = slice(0 if has_shift else 1, 2)

    def design(logits: np.ndarray, means: np.ndarray) -> np.ndarray:
        return np.stack([np.ones_like(logits), logits], axis=1)[:, columns]

    start, centre = np.array([[starting_bias(plain, 1.0), 1.0], [0.0, 1.0]])[:, columns]
    lower = np.array([-np.inf, _SMALLEST_SLOPE])[columns]
    precision = np.diag([0.0, _SLOPE_PRECISION])[columns, columns]
    # Platt scaling with a Gaussian prior about slope 1.
    fit = fit_logistic(plain, design, start, lower, precision, centre)
    bias, slope = fit.parameters if has_shift else (0.0, *fit.parameters)
    return replace(histogram, view=view.then(Line(float(slope), float(bias))))


def reference_line(rows: Rows) -> Line:
    """A line that nearly calibrates the scores of rows; `b l + d` and l have the same `a l + c`.

    Example:
        >>> logits, labels = np.array([-2.0, -1.0, 0.0, 1.0, 2.0] * 9), np.arange(45) % 9 > 3
        >>> rows = [Rows(b * logits + 7, labels.astype(float), None) for b in (1.0, 1000.0)]
        >>> line, other = map(reference_line, rows)
        >>> np.allclose(line(logits + 7), other(1000 * logits + 7))
        True
    """
    bins = bins_of(rows.logits, rows.weights)
    return seen_as_logits(logit_histogram(rows.logits, rows.labels, rows.weights, bins)).line


def class_line(rows: Rows) -> Line:
    """A line that nearly calibrates class logits: their temperature, in units of their spread.

    Example:
        >>> logits = np.tile([[2.0, 0.0, 0.0], [0.0, 0.0, 4.0]], (50, 1))
        >>> rows = Rows(logits, np.eye(3)[[0, 1] * 50], None)
        >>> line, other = class_line(rows), class_line(rows.seen(Line(1000.0, 5.0)))
        >>> np.allclose(line(logits), other(1000 * logits + 5))
        True
    """
    # The softmax ignores a constant of a row, so only distances from the row's mean say how far
    # class logits spread.
    middles = rows.logits.mean(axis=1, keepdims=True)
    away = np.sqrt(((rows.logits - middles) ** 2).mean(axis=1))
    middle = _find_quantiles(middles[:, 0], rows.row_weights)[1]
    spread = _find_quantiles(away, rows.row_weights)[2] or float(away.max()) or abs(middle) or 1.0
    line = Line(2 / spread, -2 * middle / spread)
    temperature, _ = fit_temperature(rows.seen(line))
    return line.then(Line(max(temperature, _SMALLEST_SLOPE)))


def _find_quantiles(scores: np.ndarray, weights: np.ndarray | None) -> list[float]:
    if weights is None:
        return _select_order_statistics(
            scores, [math.ceil(share * len(scores)) - 1 for share in _SHARES]
        )
    order = np.argsort(scores, kind="stable")
    mass = np.cumsum(weights[order])
    # The margin is relative: a sum that meets its share up to rounding counts as meeting it, in any
    # unit of the weights.
    places = np.searchsorted(mass, (1 - 1e-9) * mass[-1] * np.array(_SHARES))
    return scores[order[places]].tolist()


def _select_order_statistics(scores: np.ndarray, places: list[int]) -> list[float]:
    """`np.sort(scores)[places]`, faster: most scores are only compared with two bounds."""
    sample = np.sort(scores[:: len(scores) // _SAMPLE_SIZE + 1])
    margin, statistics = round(2 * math.sqrt(len(sample))), []
    # Floyd and Rivest's SELECT: the order statistic lies between two quantiles of a sample, except
    # by a rare chance, and only the few scores between them need sorting.
    for place in places:
        middle = place * len(sample) // len(scores)
        low, high = sample[np.clip([middle - margin, middle + margin], 0, len(sample) - 1)]
        is_below = scores < low
        inside = scores[is_below ^ (scores <= high)]
        num_below = int(np.count_nonzero(is_below))
        if not num_below <= place < num_below + len(inside):  # an order that the sample misses
            inside, num_below = scores, 0
        statistics.append(float(np.partition(inside, place - num_below)[place - num_below]))
    return statistics
