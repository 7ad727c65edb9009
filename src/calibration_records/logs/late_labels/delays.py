"""The distribution of delays that are seen only if they are shorter than the age of their row."""

from __future__ import annotations

import numpy as np
from scipy.special import betaln

# Pseudo-rows that a field value gets of all rows, from nearly none to nearly nothing else.
_STRENGTHS = 2.0 ** np.arange(0, 15)
_NUM_COARSE = 8
_FEWEST_EVENTS = 30


def delay_grid(delays: np.ndarray, most: int, counts: np.ndarray | None = None) -> np.ndarray:
    """The distinct delays, or of more than `most`, quantiles, and the last of each equal step.

    With `counts`, each delay is that of so many rows.

    Example:
        >>> delay_grid(np.array([3.0, 1.0, 3.0]), 500)
        array([1., 3.])
    """
    distinct = np.unique(delays)
    if len(distinct) <= most:
        return distinct
    # Squares, because of a small share, the error must be small. Equal steps, because a group may
    # have most of its delays where those of all are few.
    half = most // 2
    levels = (np.arange(1, half + 1) / half) ** 2
    quantiles = np.quantile(delays, levels, method="inverted_cdf", weights=counts)
    equal = np.searchsorted(distinct, np.linspace(0.0, distinct[-1], half + 1)[1:], side="right")
    return np.unique([*quantiles, *distinct[np.maximum(equal - 1, 0)]])


def reverse_counts(
    delays: np.ndarray,
    ages: np.ndarray,
    weights: np.ndarray,
    grid: np.ndarray,
    groups: np.ndarray | None = None,
    num_groups: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Events and rows at risk at each grid delay g_k, two arrays (num_groups, len(grid)).

    At risk at g_k are the rows with delay ≤ g_k ≤ age; events are those with delay > g_{k-1}. The
    sums are additive over rows.

    Example:
        >>> events, at_risk = reverse_counts(
        ...     np.array([1.0, 2.0]), np.array([1.0, 5.0]), np.ones(2), np.array([1.0, 2.0])
        ... )
        >>> events.tolist(), at_risk.tolist()
        ([[1.0, 1.0]], [[1.0, 1.0]])
    """
    events, at_risk = _reverse_sums(delays, ages, weights, grid, groups, num_groups)
    return events, np.maximum(at_risk, events)


def _reverse_sums(
    delays: np.ndarray,
    ages: np.ndarray,
    values: np.ndarray,
    grid: np.ndarray,
    groups: np.ndarray | None,
    num_groups: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of values over events and over rows at risk, see `reverse_counts`."""
    first = np.searchsorted(grid, delays, side="left")
    after = np.searchsorted(grid, ages, side="right")
    group = np.zeros(len(delays), np.int64) if groups is None else groups
    seen = first < after
    first, after, group, values = (each[seen] for each in (first, after, group, values))
    shape = (num_groups, len(grid) + 1)

    def sums(columns: np.ndarray) -> np.ndarray:
        cells = group * shape[1] + columns
        return np.bincount(cells, values, minlength=shape[0] * shape[1]).reshape(shape)

    events = sums(first)
    at_risk = np.cumsum(events - sums(after), axis=1)
    return events[:, :-1], at_risk[:, :-1]


def product_limit(events: np.ndarray, at_risk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the delays ≤ each grid delay, and the variance of their logarithms (Greenwood).

    `F_k = Π_{j>k} (1 - events_j / at_risk_j)`: 1 at the last grid delay.

    Example:
        >>> shares, _ = product_limit(np.array([2.0, 1.0, 1.0]), np.array([2.0, 3.0, 4.0]))
        >>> shares
        array([0.5 , 0.75, 1.  ])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(at_risk > 0, 1.0 - events / at_risk, 1.0)
        steps = np.where(events > 0, events / (at_risk * (at_risk - events)), 0.0)

    def after(values: np.ndarray, accumulate: np.ufunc, start: float) -> np.ndarray:
        ends = np.full((*values.shape[:-1], 1), start)
        later = np.concatenate([values[..., 1:], ends], axis=-1)
        return accumulate.accumulate(later[..., ::-1], axis=-1)[..., ::-1]

    return after(kept, np.multiply, 1.0), after(steps, np.add, 0.0)


def pooling_strength(
    delays: np.ndarray,
    ages: np.ndarray,
    weights: np.ndarray,
    groups: np.ndarray,
    num_groups: int,
) -> float:
    """How many rows of the whole each group gets, by the largest marginal likelihood.

    In coarse steps of the delay, the events of a group are beta-binomial around the whole's rates.
    """
    levels = np.arange(1, _NUM_COARSE + 1) / _NUM_COARSE
    grid = np.unique(np.quantile(delays, levels, method="inverted_cdf", weights=weights))
    events, at_risk = reverse_counts(delays, ages, weights, grid, groups, num_groups)
    all_events, all_at_risk = events.sum(axis=0), at_risk.sum(axis=0)
    # At the first step all that are at risk are events.
    inner = (all_events > 0) & (all_events < all_at_risk)
    events, others = events[:, inner], (at_risk - events)[:, inner]
    share = all_at_risk[inner] / weights.sum()
    rate = (all_events / np.maximum(all_at_risk, 1e-300))[inner]

    def likelihood(strength: float) -> float:
        a, b = strength * share * rate, strength * share * (1.0 - rate)
        return float(np.sum(betaln(a + events, b + others) - betaln(a, b)))

    return float(max(_STRENGTHS, key=likelihood))


def log_share_variance(sums: np.ndarray, log_variances: np.ndarray) -> np.ndarray:
    """Variances of `Σ_k sums_k / F_k` by the error of F, of rows (n, len(grid)) already divided.

    The logarithms of F at two delays have the variance of the later one as their covariance.

    Example:
        >>> log_share_variance(np.array([[1.0, 1.0]]), np.array([[0.2, 0.1]]))
        array([0.5])
    """
    squares = np.cumsum(sums, axis=-1) ** 2
    new = np.diff(squares, axis=-1, prepend=0.0)
    return np.asarray((new * log_variances).sum(axis=-1))


def delay_trend(
    delays: np.ndarray,
    ages: np.ndarray,
    counts: np.ndarray,
    grid: np.ndarray,
    groups: np.ndarray,
    num_groups: int,
) -> tuple[float, float]:
    """Change of the log reverse hazard per unit of age, and its z: 0 if delays do not drift.

    Cox's score test with the age as covariate, one step of Newton's method; positive if the delays
    of old rows are longer. Among rows at risk, events are those with the longest delay. 0 too with
    so few events that z is not normal.
    """
    centred = ages - np.average(ages, weights=counts)
    events, at_risk = reverse_counts(delays, ages, counts, grid, groups, num_groups)
    event_sums, sums = _reverse_sums(delays, ages, counts * centred, grid, groups, num_groups)
    _, squares = _reverse_sums(delays, ages, counts * centred**2, grid, groups, num_groups)
    mean = sums / np.maximum(at_risk, 1.0)
    score = np.sum(event_sums - events * mean)
    # Where all at risk are events, they say nothing.
    counted = events * (at_risk - events) / np.maximum(at_risk - 1.0, 1.0)
    information = np.sum(counted * (squares / np.maximum(at_risk, 1.0) - mean**2))
    if counted.sum() < _FEWEST_EVENTS or information <= 0:
        return 0.0, 0.0
    return float(score / information), float(score / np.sqrt(information))
