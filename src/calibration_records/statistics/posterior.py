"""The posterior probability that B is better than A by a given margin."""

import warnings
from types import ModuleType

import numpy as np
from scipy import special

from calibration_records._check import not_negative, positive, refused


def probability_better(
    difference: float,
    standard_error: float,
    degrees: float,
    *,
    margin: float = 0.0,
    prior_scale: float | None = None,
) -> float:
    """The posterior probability that B's mean loss is lower than A's by at least `margin`.

    With a flat prior, the posterior of the difference δ = B − A is δ̂ + SE t(v), and the result is
    P(δ ≤ −margin). A prior N(0, τ²), for example from earlier comparisons, shrinks large
    differences from few runs: the posterior is proportional to t((δ̂ − δ)/SE; v) N(δ; 0, τ²). With
    τ far above |δ̂| and SE, it is that of the flat prior.

    Args:
        difference: δ̂, the mean of B minus the mean of A; lower is better.
        standard_error: SE of the difference.
        degrees: Degrees of freedom v of the standard error.
        margin: Smallest improvement that matters, in the unit of the loss, at least 0.
        prior_scale: τ, in the unit of the loss; `None` for the flat prior.

    Raises:
        ValueError: `standard_error` or `margin` is negative, or `prior_scale` is not positive.

    Example:
        >>> round(probability_better(-1.0, 0.5, degrees=9), 3)
        0.962
        >>> round(probability_better(-1.0, 0.5, degrees=9, prior_scale=0.5), 3)
        0.885

    Reference:
        Kruschke (2013), *Bayesian estimation supersedes the t test*; van Zwet and Cator (2021),
        *The significance filter, the winner's curse and the need to shrink*.
    """
    if standard_error < 0:
        raise refused("standard_error", "at least 0", standard_error)
    not_negative("margin", margin)
    if prior_scale is not None:
        positive("prior_scale", prior_scale)
    # Without any noise, the difference is certain; none at all is in favour of neither.
    if standard_error == 0:
        return float(np.heaviside(-margin - difference, 0.5))
    if prior_scale is None:
        # SciPy has Student's t, so that the command line need not load TensorFlow.
        return float(special.stdtr(degrees, (-margin - difference) / standard_error))
    tfd = _import_distributions()
    # Student's t is a normal distribution whose precision has a factor λ ~ Gamma(v/2, v/2). Given
    # λ, the posterior of δ is normal. So average over a grid of log λ, which needs no step as small
    # as the prior or the likelihood: √(2/v) is the standard deviation of log λ, and a prior far
    # from δ̂ moves it down to −2 log(|δ̂|/SE) at most.
    half = np.float64(min(degrees, 1e8) / 2)
    unit = half**-0.5
    logs = np.arange(
        -40 * unit - 2 * np.log1p(abs(difference) / standard_error), 40 * unit, 0.2 * unit
    )
    noise = standard_error * np.exp(-logs / 2)
    total = np.hypot(prior_scale, noise)
    kept = prior_scale / total
    log_masses = tfd.ExpGamma(half, half).log_prob(logs) + tfd.Normal(0, total).log_prob(difference)
    # Subtracting the largest logarithm keeps the masses above 0.
    masses = np.exp(log_masses - np.max(log_masses))
    below = tfd.Normal(kept**2 * difference, kept * noise).cdf(-margin)
    return float(masses @ np.asarray(below) / masses.sum())


def _import_distributions() -> ModuleType:
    """The module `tensorflow_probability.distributions`, without the warnings of its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # Imported late: it loads TensorFlow and tf-keras.
        import tensorflow_probability as tfp

        # The module is lazy: its first use imports it, and must be inside this block.
        dir(tfp.distributions)
        return tfp.distributions
