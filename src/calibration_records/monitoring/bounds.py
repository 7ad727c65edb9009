"""Bounds on the sums of a period or field if the predictions are right.

Right predictions mean that each label is 1 with its row's predicted probability p.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.special import betaincinv, gammaincinv

from calibration_records._limits import FIELD_RCE_EPSILON
from calibration_records._logit_moments import (
    CENTRES,
    HALF_WIDTHS,
    IS_NODE,
    LARGEST_BIAS,
    LARGEST_NUM_STEPS,
    LOGITS,
    TOLERANCE,
    BiasSearch,
    TermsAt,
    log_loss_and_weight,
    terms,
)
from calibration_records.monitoring.sums import Sums
from calibration_records.statistics.field_noise import drawn_field_sums

# Accuracy of the logit summary, in nats per row.
_ROUNDING = 1e-8
# Number of draws, over all values of a field.
_NUM_DRAWN = 2_000_000


def rate_factors(
    positives: np.ndarray, predicted: np.ndarray, rows: np.ndarray, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Confidence intervals of true / predicted rates; the lower end is 0 without positives.

    The interval of the true rate is Clopper and Pearson's. The interval is exact if all rows have
    the same probability. If probabilities differ, positives vary less, so that the interval holds
    more often (Hoeffding), however far the predictions are off.

    Example:
        >>> sums = np.array([[30.0], [20.0], [1000.0]])
        >>> low, high = rate_factors(*sums, 0.95)
        >>> low.round(2), high.round(2)
        (array([1.02]), array([2.13]))

    Reference:
        Clopper and Pearson, *The use of confidence or fiducial limits illustrated in the case of
        the binomial*, Biometrika 1934. Hoeffding, *On the distribution of the number of successes
        in independent trials*, Annals of Mathematical Statistics 1956.
    """
    # Clopper and Pearson's ends are quantiles of beta distributions; 1e-9 stands for the limits
    # without positives or negatives, where they are 0 and 1.
    tail = (1 - confidence) / 2
    low = betaincinv(np.maximum(positives, 1e-9), rows - positives + 1, tail)
    high = betaincinv(positives + 1, np.maximum(rows - positives, 1e-9), 1 - tail)
    scale = rows / predicted
    return np.where(positives > 0, low * scale, 0.0), high * scale


class PeriodLosses:
    """Log loss, entropy and bias of the rows of one summary of `_logit_moments`, (418, 8)."""

    def __init__(self, moments: np.ndarray) -> None:
        self._terms = terms(np, moments[None])
        negatives, positives, negative_offsets, positive_offsets = moments.T[:4]
        self._negatives = negatives.sum()
        self._positives = positives.sum()
        self._weights = negatives + positives
        self.num_rows = float(self._weights.sum())
        # The mean logit of each bin that holds rows, for the largest |x - x̄| in `bounds`.
        used = self._weights > 0
        offsets = (negative_offsets + positive_offsets)[used] / self._weights[used]
        self._means = CENTRES[used, 0] + HALF_WIDTHS[used, 0] * offsets

    @cached_property
    def bias(self) -> float:
        """The bias c at which predictions sum to labels; NaN if rows do not determine it."""
        if not (self._negatives > 0 and self._positives > 0):
            return np.nan
        start = (
            *(0.0, -LARGEST_BIAS, LARGEST_BIAS, LARGEST_BIAS, 0.0),
            *(self._negatives, self._positives, *self._weights[[0, -1]]),
        )
        search = BiasSearch(*(np.array([value]) for value in start))
        with np.errstate(divide="ignore", invalid="ignore"):
            for _ in range(LARGEST_NUM_STEPS):
                search = search.improved(np, _sum_values, self._terms, "float64")
                if not search.moved > TOLERANCE:
                    break
        return float(search.result(np)[0])

    def mean_loss(self, bias: float) -> float:
        """The mean log loss of `σ(l + c)`; NaN where the bins are too wide for a bias."""
        losses, _ = log_loss_and_weight(np, _sum_values, self._terms, np.array([bias]))
        return float(losses[0]) / self.num_rows

    def bounds(self, confidence: float) -> tuple[float, float, float]:
        """The expected Calibrated Log Loss if `σ(l + c)` is right, and its bounds, in nats per row.

        The bias c makes the sum of the predictions equal the sum of the labels. The expected loss
        is the mean entropy of `p = σ(l + c)`: of a row `softplus(-|x|) + |x| σ(-|x|)`, x = l + c.
        The loss differs from it by `Σ (p - y) (x - x̄) / n` with any constant x̄, since the residuals
        sum to 0. This has the mean 0 and a variance `V = Σ p (1 - p) (x - x̄)²` that is least at the
        mean of x weighted by p (1 - p). Bernstein's inequality bounds it at any rate of positives:
        with `L = log(2 / (1 - confidence))` and b the largest `|x - x̄|`,
        `|Σ (p - y) (x - x̄)| ≤ sqrt(2 V L + (b L / 3)²) + b L / 3`.

        If the loss is above its bounds, the predictions are over-confident, for example because a
        feature broke. If it is below, they are under-confident.

        Reference:
            Boucheron, Lugosi, Massart, *Concentration Inequalities*, 2013, theorem 2.10.
        """
        at, x = TermsAt(np, self._terms, np.array([self.bias])), LOGITS + self.bias  # of nodes
        # Each bin stands for its rows by quadrature nodes with weights, so that sums over rows
        # become sums over nodes.
        entropies = np.where(IS_NODE, np.log1p(at.tail) + at.side * x * at.rarer, 0.0)
        expected = float(np.sum(at.weight * entropies)) / self.num_rows
        curvature = (at.weight * at.curvature)[0]
        middle = float(curvature @ x / curvature.sum())
        # V is least about the mean of x weighted by p (1 - p). Rounding can make it slightly
        # negative if all predictions are equal.
        variance = max(float(curvature @ (x - middle) ** 2), 0.0)
        level = np.log(2 / (1 - confidence))
        # Bernstein's inequality, solved for the deviation that has the probability 1 - confidence.
        third = float(np.max(np.abs(self._means + self.bias - middle))) * level / 3
        half_width = (np.sqrt(2 * variance * level + third**2) + third) / self.num_rows + _ROUNDING
        return expected, float(expected - half_width), float(expected + half_width)


def _sum_values(parts: list[np.ndarray]) -> list[np.ndarray]:
    return [np.sum(part, axis=-1) for part in parts]


def field_rce(sums: Sums) -> float:
    """Field-RCE of the sums of the values of a field."""
    return float(_compute_terms(sums, sums.positives).sum() / sums.rows.sum())


def _compute_terms(sums: Sums, positives: np.ndarray) -> np.ndarray:
    """The term of each value in a Field-RCE, times the number of all rows."""
    error = np.abs(positives - sums.predicted) * sums.rows
    return error / (positives + FIELD_RCE_EPSILON * sums.rows)


def field_rce_bound(sums: Sums, risk: float) -> tuple[float, float, float]:
    """Mean and deviation of a Field-RCE under right predictions, and its upper bound.

    The error is a sum of independent terms, one for each field value, whose first three moments
    come from drawn labels. A value without positives divides by ε n alone: its term is large and
    rare. The bound is the quantile of a shifted gamma distribution with these moments (Pearson's
    type III). Right predictions exceed this bound up to 1.3 times too often, and a bound from a
    normal distribution up to 14 times.

    Args:
        sums: Sums of each value.
        risk: Probability that right predictions exceed the bound.

    Example:
        >>> sums = Sums(*np.outer([100, 10, 10, 1], np.ones(20)))  # values of 100 rows with p = 0.1
        >>> mean, deviation, bound = field_rce_bound(sums, 0.01)
        >>> round(mean, 2), round(deviation, 2), round(bound, 2)
        (0.25, 0.06, 0.45)
    """
    # Draws follow the order of the values, whose names must not matter.
    sums = Sums(*np.stack(sums)[:, np.lexsort(sums)])
    rows, _, predicted, squares = sums
    # Field sums as if the labels were the predictions: a residual of 0, and weights of 1.
    columns = (0 * predicted, predicted, rows, rows, predicted - squares, predicted, squares)
    num_draws = int(np.clip(_NUM_DRAWN // len(predicted), 20, 1000))
    powers = np.zeros((3, len(predicted)))
    for drawn in drawn_field_sums(np.stack(columns, axis=1), num_draws):
        drawn_terms = _compute_terms(sums, drawn[:, 1])
        powers += np.stack([drawn_terms, drawn_terms**2, drawn_terms**3]) / num_draws
    first, second, third = powers
    mean = first.sum()
    deviation = np.sqrt(np.maximum(second - first**2, 0.0).sum())
    total = rows.sum()
    # Means, variances and third central moments of independent terms add up.
    skew = np.sum(third - 3 * first * second + 2 * first**3) / max(deviation**3, 1e-300)
    # Pearson's type III: a gamma variable of shape k has the skewness `2 / √k`, the mean k and the
    # variance k; shift and scale give the first two moments.
    shape = 4 / max(skew, 1e-3) ** 2
    bound = mean + deviation * (gammaincinv(shape, 1 - risk) - shape) / np.sqrt(shape)
    return float(mean / total), float(deviation / total), float(bound / total)
