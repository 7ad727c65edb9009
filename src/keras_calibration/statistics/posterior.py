"""The probability that B is better than A by at least a given margin."""

import numpy as np

from keras_calibration.statistics.estimate import t_probability


def probability_better(
    difference: float,
    standard_error: float,
    degrees: float,
    *,
    margin: float = 0.0,
    prior_scale: float | None = None,
) -> float:
    """The posterior probability that B's mean loss is lower than A's by at least `margin`.

    With a flat prior the difference δ = B − A has the posterior δ̂ + SE t(v), and the answer is
    P(δ ≤ −margin). With a prior N(0, τ²), such as earlier comparisons suggest, large differences
    from few runs are drawn towards 0: the posterior is as
    t((δ̂ − δ)/SE; v) N(δ; 0, τ²).

    Args:
        difference: δ̂, the mean of B minus that of A, lower being better.
        standard_error: SE of the difference, in its unit.
        degrees: v, the degrees of freedom of the standard error; may be infinite.
        margin: smallest improvement that matters, in the unit of the loss, at least 0.
        prior_scale: τ, in the unit of the loss; `None` for the flat prior.

    Raises:
        ValueError: `margin` is negative or `prior_scale` not positive.

    Example:
        >>> round(probability_better(-1.0, 0.5, degrees=np.inf), 3)
        0.977
        >>> round(probability_better(-1.0, 0.5, degrees=np.inf, prior_scale=0.5), 3)
        0.921

    Reference:
        Kruschke (2013), *Bayesian estimation supersedes the t test*; van Zwet and Cator (2021),
        *The significance filter, the winner's curse and the need to shrink*.
    """
    if not margin >= 0 or (prior_scale is not None and not prior_scale > 0):
        raise ValueError(
            f"Received margin={margin!r} and prior_scale={prior_scale!r}; expected margin >= 0 and "
            "prior_scale > 0 or None; give both in the unit of the loss."
        )
    if standard_error == 0:
        return float(difference < 0 and difference <= -margin)
    if prior_scale is None:
        # By scipy: the command line shows it, and must not wait for TensorFlow.
        return t_probability((-margin - difference) / standard_error, degrees)
    # Imported when used: it loads TensorFlow.
    from keras_calibration.ops.distributions import distributions

    tfd = distributions()
    value, error = np.float64(difference), np.float64(standard_error)
    if np.isfinite(degrees):
        likelihood = tfd.StudentT(df=np.float64(degrees), loc=value, scale=error)
    else:
        likelihood = tfd.Normal(loc=value, scale=error)
    prior = tfd.Normal(loc=np.float64(0), scale=np.float64(prior_scale))
    # Beyond nine scales of the prior it has no mass; the grid's step resolves both.
    width = 9 * prior_scale
    num_points = int(min(200_001, max(2001, 40 * width / float(error))))
    step = 2 * width / num_points
    grid = -width + step * (np.arange(num_points) + 0.5)
    logs = np.asarray(likelihood.log_prob(grid) + prior.log_prob(grid))
    masses = np.exp(logs - logs.max())
    edges = -width + step * np.arange(num_points + 1)
    cumulative = np.concatenate([[0.0], np.cumsum(masses)]) / masses.sum()
    return float(np.interp(-margin, edges, cumulative))
