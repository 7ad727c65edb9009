"""The difference between two pipelines' means, with an interval that holds at every look."""

import numpy as np

from keras_calibration.statistics.estimate import (
    MAX_RUNS_WITHOUT_P_VALUE,
    Estimate,
    RunValues,
    check_confidence,
    check_paired,
)


def always_valid_difference(
    a: RunValues, b: RunValues, *, confidence: float = 0.95, effect_variance: float = 1.0
) -> Estimate:
    """The mean of B minus that of A, with an interval that holds at every look.

    Of the differences dᵢ = bᵢ − aᵢ, S = Σ d, V = Σ d², the mixture over effect sizes N(0, g) gives
    log e_m = −½ log(1 + m g) − m/2 log(1 − m g/(1 + m g) S²/(m V)). Without a difference, e_m ever
    exceeds 1/α with a probability of at most α. The interval contains all shifts that are not
    rejected; p = min(1, 1/e_m) is the p-value of this look.

    Args:
        a: Values of A, `(num_runs,)`, in the order in which they were run.
        b: Values of B, with the same seeds or simply in the order in which they were run.
        confidence: Joint confidence of all looks, in (0, 1).
        effect_variance: g, the prior variance of the effect size mean(d)/std(d).

    Raises:
        ValueError: The lengths differ, or values are not finite.

    Example:
        >>> estimate = always_valid_difference(np.zeros(6), [1.0, 1.2, 0.9, 1.1, 1.0, 0.8])
        >>> estimate.excludes(0.0)
        True

    Reference:
        Lai (1976), *On confidence sequences*; Wang and Ramdas, arXiv 2310.03722.
    """
    check_confidence(confidence)
    a, b = check_paired(a=a, b=b)
    differences = b - a
    num, mean = differences.size, float(differences.mean())
    growth = 1 + num * effect_variance
    shrink = (growth - 1) / growth
    # The share of m d̄² in Σ d² at which log e reaches log(1/α).
    share = -np.expm1((2 * np.log(1 - confidence) - np.log(growth)) / num) / shrink
    centred = float(np.sum((differences - mean) ** 2))
    half = np.sqrt(share / (1 - share) * centred / num) if share < 1 else np.inf
    p_value = None
    if num > MAX_RUNS_WITHOUT_P_VALUE and centred > 0:
        seen = num * mean**2 / (centred + num * mean**2)
        p_value = float(min(1.0, np.exp(0.5 * (np.log(growth) + num * np.log1p(-shrink * seen)))))
    return Estimate(mean, mean - float(half), mean + float(half), confidence, p_value)
