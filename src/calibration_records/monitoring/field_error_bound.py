"""The distribution of a Field-RCE if the predictions are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from calibration_records._limits import FIELD_RCE_EPSILON
from calibration_records.monitoring.sums import Sums
from calibration_records.statistics.field_noise import count_probabilities

# Values whose distributions are convolved, and points of the grid of the sum.
_MOST_EXACT, _NUM_POINTS = 2048, 1 << 13
_VALUES_TOGETHER, _TRANSFORMED_TOGETHER = 1 << 12, 64
_ROUNDING, _LEAST_SKEW = 1e-9, 1e-10
# What lies beyond the grid is less likely than the risk by this factor.
_BEYOND = 1e-3


def field_rce(sums: Sums) -> float:
    """Field-RCE of the sums of the values of a field."""
    num_rows = sums["rows"].sum()
    return float(_terms(sums["positives"], sums).sum() / num_rows) if num_rows else 0.0


def field_rce_bound(sums: Sums, risk: float) -> tuple[float, ...]:
    """Mean and deviation of a Field-RCE under right predictions, and the bound it rarely exceeds.

    The error times the number of rows is a sum of independent terms `|k - m| n / (k + ε n)`, one
    for each field value: k positives in n rows, m expected. A value without positives divides by
    ε n alone: its term is large and rare. Normal and gamma distributions of the same mean and
    variance are exceeded several times too often, and so is a bound from few simulations. So the
    distributions of the terms are convolved, by the discrete Fourier transform. Of more than 2048
    values, those with the largest third moments are convolved; the sum of the others is close to a
    gamma distribution with their first three cumulants.

    Args:
        sums: Sums of each value.
        risk: Probability that right predictions exceed the bound.

    Example:
        >>> ones = np.ones(20)  # values of 100 rows with p = 0.1
        >>> sums = Sums(rows=100 * ones, predicted=10 * ones, predicted_squares=ones)
        >>> mean, deviation, bound = field_rce_bound(sums, 0.01)
        >>> round(mean, 3), round(deviation, 3), round(bound, 3)
        (0.25, 0.063, 0.439)
    """
    sums = sums.of(sums["rows"] > 0)
    if not sums.num_groups:
        return 0.0, 0.0, 0.0
    means, variances, thirds, weights = _moments(sums)
    mean, variance, num_rows = means.sum(), variances.sum(), sums["rows"].sum()
    deviation = np.sqrt(variance)
    if deviation <= _ROUNDING * mean:
        return _over(num_rows, mean, deviation, mean * (1 + _ROUNDING))
    order = np.argsort(-weights, kind="stable")
    others = order[_MOST_EXACT:]
    gamma = _Gamma(variances[others].sum(), thirds[others].sum())
    beyond = -np.log(risk * _BEYOND)
    parts = list(_excesses(sums.of(order[:_MOST_EXACT]), risk * _BEYOND / _MOST_EXACT / 257))
    upper = _chernoff_bound(parts, gamma, beyond, deviation)
    # Terms are not negative: their lower tail is no longer than that of a normal distribution.
    lower = min(mean, np.sqrt(2 * beyond * np.sum(variances + means**2)))
    step = (upper + lower) / (_NUM_POINTS - 8)
    transform = gamma.transform(step)
    for excesses, probabilities in parts:
        transform = transform * _transform(excesses / step, probabilities)
    # Point i of the grid is an error of i steps above the mean; those below the mean come last.
    points = np.fft.irfft(transform, _NUM_POINTS)[: int(upper / step) + 4]
    exceeded = np.flatnonzero(np.cumsum(points[::-1])[::-1] > risk)
    # A term is spread over three points, so that its own place may be one and a half steps away.
    excess = (exceeded[-1] + 2 if len(exceeded) else 0) * step
    return _over(num_rows, mean, deviation, mean + excess)


def _over(num_rows: float, *values: float) -> tuple[float, ...]:
    return tuple(float(value / num_rows) for value in values)


def _excesses(sums: Sums, least: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What each term may be above its mean (values, k), and with which probabilities.

    Those of at most `least` are left out.
    """
    for counts, probabilities, part in _counts(sums):
        terms = _terms(counts, part)
        excesses = terms - np.sum(terms * probabilities, axis=1, keepdims=True)
        is_likely = probabilities > least
        yield np.where(is_likely, excesses, 0.0), np.where(is_likely, probabilities, 0.0)


def _moments(sums: Sums) -> tuple[np.ndarray, ...]:
    """Of each term: mean, variance, third central moment, and the absolute third one."""
    found = []
    for counts, probabilities, part in _counts(sums):
        terms = _terms(counts, part)
        means = np.sum(terms * probabilities, axis=1)
        away = terms - means[:, None]
        powers = (away**2, away**3, np.abs(away) ** 3)
        found.append([means, *(np.sum(power * probabilities, axis=1) for power in powers)])
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def _counts(sums: Sums) -> Iterator[tuple[np.ndarray, np.ndarray, Sums]]:
    """Numbers of positives and their probabilities, for some values at a time."""
    for first in range(0, sums.num_groups, _VALUES_TOGETHER):
        part = sums.of(slice(first, first + _VALUES_TOGETHER))
        means = (part["rows"], part["predicted"], part["predicted_squares"])
        yield *count_probabilities(*means), part


def _terms(counts: np.ndarray, sums: Sums) -> np.ndarray:
    """The term of each value, for one number of positives (values,) or several (values, k)."""
    shape = (-1, *[1] * (counts.ndim - 1))
    rows, predicted = sums["rows"].reshape(shape), sums["predicted"].reshape(shape)
    return np.abs(counts - predicted) * rows / (counts + FIELD_RCE_EPSILON * rows)


def _chernoff_bound(
    parts: Sequence[tuple[np.ndarray, np.ndarray]], gamma: _Gamma, level: float, deviation: float
) -> float:
    """An excess that the sum exceeds with a probability of at most `exp(-level)`."""
    bounds = []
    for slope in np.geomspace(1e-6, 30.0, 90) / deviation:
        generating = gamma.cumulant_generating(slope)
        for excesses, probabilities in parts:
            with np.errstate(over="ignore"):
                generating += np.log(np.sum(np.exp(slope * excesses) * probabilities, axis=1)).sum()
        bounds.append((generating + level) / slope)
    return float(min(bounds))


def _transform(places: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The transform of the sum of terms on the grid, from their places in steps (values, k)."""
    nearest = np.rint(places)
    away = places - nearest
    # Interpolation through three points, which keeps the mean and the variance.
    shares = {-1: away * (away - 1) / 2, 0: 1 - away**2, 1: away * (away + 1) / 2}
    product = np.ones(_NUM_POINTS // 2 + 1, complex)
    for first in range(0, len(places), _TRANSFORMED_TOGETHER):
        chunk = slice(first, first + _TRANSFORMED_TOGETHER)
        starts = _NUM_POINTS * np.arange(len(places[chunk]))[:, None]
        grid = np.zeros(_NUM_POINTS * len(starts))
        for shift, share in shares.items():
            points = starts + (nearest[chunk] + shift).astype(np.int64) % _NUM_POINTS
            mass = (share[chunk] * probabilities[chunk]).ravel()
            grid += np.bincount(points.ravel(), mass, len(grid))
        product *= np.fft.rfft(grid.reshape(-1, _NUM_POINTS)).prod(axis=0)
    return product


class _Gamma:
    """A gamma distribution of a mean of 0, or a normal one where it is hardly skewed."""

    def __init__(self, variance: float, third: float) -> None:
        self.variance = variance
        self.scale = third / (2 * variance) if variance > 0 else 0.0
        self.is_normal = self.scale**2 <= _LEAST_SKEW * variance

    def cumulant_generating(self, slope: float) -> float:
        """The logarithm of the mean of `exp(slope x)`; infinite where there is none."""
        if self.is_normal:
            return float(self.variance * slope**2 / 2)
        if self.scale * slope >= 1:
            return float("inf")
        shape = self.variance / self.scale**2
        return float(-shape * (np.log1p(-self.scale * slope) + self.scale * slope))

    def transform(self, step: float) -> np.ndarray:
        """Its discrete Fourier transform on the grid."""
        angles = np.linspace(0.0, np.pi, _NUM_POINTS // 2 + 1) / step
        if self.is_normal:
            return np.exp(-self.variance * angles**2 / 2)
        shape, places = self.variance / self.scale**2, 1j * angles * self.scale
        return np.exp(-shape * (np.log1p(places) - places))
