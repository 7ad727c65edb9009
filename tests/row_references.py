"""Figures of scored rows in plain NumPy and SciPy, written apart from the package."""

import numpy as np
from scipy import optimize, special, stats


def losses_of(y, logits):
    return np.logaddexp(0, logits) - y * logits


def fitted_line(logits, y, w, _, has_scale=True, has_shift=True):
    """The line of maximal likelihood."""

    def loss(v):
        eta = (v[0] if has_scale else 1.0) * logits + (v[1] if has_shift else 0.0)
        slope = w * (special.expit(eta) - y)
        gradient = [has_scale * slope @ logits, has_shift * slope.sum()]
        return w @ losses_of(y, eta) / w.sum(), np.array(gradient) / w.sum()

    scale, shift = optimize.minimize(loss, [1.0, 0.0], jac=True, options={"gtol": 1e-10}).x
    return lambda new, _: scale * new + shift


def mean_and_error(values, weights, *clusters):
    """Weighted mean and its standard error: the largest of those of rows and of each clustering."""
    away = weights * (values - weights @ values / weights.sum())
    variances = [np.sum(away**2)]
    for cluster in clusters:
        names = np.unique(cluster)
        sums = [away[cluster == name].sum() for name in names]
        variances.append(len(names) / (len(names) - 1) * np.sum(np.square(sums)))
    return weights @ values / weights.sum(), np.sqrt(max(variances)) / weights.sum()


def auc(y, scores, weights):
    """The share of pairs of a positive and a negative in which the positive is first."""
    up, down = y == 1, y == 0
    above = np.sign(scores[up][:, None] - scores[down]) / 2 + 0.5
    return weights[up] @ above @ weights[down] / (weights[up].sum() * weights[down].sum())


def range_tail(x):
    """The tail of the range of a Brownian motion, from Feller's density, by integration."""
    grid = np.linspace(x, x + 8, 4001)
    k = np.arange(1, 30)[:, None]
    density = 8 * np.sum((-1.0) ** (k - 1) * k**2 * stats.norm.pdf(k * grid), axis=0)
    return np.trapezoid(density, grid)


def segment_figures(p, y, w, n, group=None, correlation=0.0):
    """Rows, rates, ECCE, deviations and p-value of a segment, whose rows stand for n rows; and σ.

    As the docstring of `multicalibration_error` defines them.
    """
    share = w / w.sum()
    walk = [0.0]
    for value in np.unique(p):
        walk.append(walk[-1] + np.sum((share * (y - p))[p == value]))
    error = max(walk) - min(walk)
    a = share * np.sqrt(p * (1 - p) / n)
    variance, factor = np.sum(a**2), 1.0
    if group is not None:
        together = sum(a[group == g].sum() ** 2 for g in np.unique(group))
        factor = 1 - correlation + correlation * together / variance
    deviation = np.sqrt(factor * variance)
    # Bennett's inequality, for steps towards the end of the range that comes later.
    step = factor * np.max(share / n * (1 - p if np.argmax(walk) > np.argmin(walk) else p))
    u = step * error / deviation**2
    x = deviation / step * np.sqrt(2 * ((1 + u) * np.log1p(u) - u))
    return [n.sum(), share @ p, share @ y, error, error / deviation, range_tail(x)], deviation
