"""Moderated variances: the seed noise of few runs, with the help of other pipelines."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from keras_calibration.statistics.estimate import Estimate, check_confidence, check_runs, t_estimate

MIN_PIPELINES = 3


class FamilyNoise(NamedTuple):
    """The prior of the variance over seeds in a family of pipelines.

    The variance of a pipeline is distributed as v₀ s₀²/χ²(v₀): s₀² is typical of the family, and
    v₀, in degrees of freedom, grows with the similarity of its pipelines. The moderated variance of
    a pipeline is s̃² = (v₀ s₀² + v s²)/(v₀ + v) with v₀ + v degrees of freedom. With three runs each
    and ten other pipelines, this gives about 20 degrees of freedom instead of 2.

    Args:
        variance: s₀², in the squared unit of the metric.
        degrees: v₀; infinite if the variances do not differ beyond chance.
        most_degrees: Total degrees of freedom of the family, an upper limit for moderated
            variances.

    Example:
        >>> family = FamilyNoise.fit([1.0, 1.2, 0.9, 1.1], [19] * 4)
        >>> variance, degrees = family.moderate(3.0, 2)
        >>> bool(1.0 < variance < 1.2), degrees
        (True, 76.0)

    Reference:
        Smyth (2004), *Linear models and empirical Bayes methods for assessing differential
        expression in microarray experiments*, section 6.2.
    """

    variance: float
    degrees: float
    most_degrees: float

    @classmethod
    def fit(
        cls,
        variances: Sequence[float] | NDArray[np.floating],
        degrees: Sequence[float] | NDArray[np.floating],
    ) -> "FamilyNoise":
        """Fits s₀² and v₀ by moments of log s².

        With e = log s² − ψ(v/2) + log(v/2), v₀ solves ψ'(v₀/2) = var(e) − mean ψ'(v/2), and s₀² =
        exp(mean(e) + ψ(v₀/2) − log(v₀/2)).

        Args:
            variances: s² of each pipeline over its runs, `(num_pipelines,)`.
            degrees: v of each pipeline, its number of runs minus one.

        Raises:
            ValueError: Fewer than three pipelines, or a variance or degree that is not positive.
        """
        squares = check_runs("variances", variances, at_least=MIN_PIPELINES)
        v = check_runs("degrees", degrees, at_least=MIN_PIPELINES)
        if squares.shape != v.shape or (squares <= 0).any() or (v <= 0).any():
            raise ValueError(
                "Arguments `variances` and `degrees` must be positive and of equal length. "
                f"Received: variances={squares}, degrees={v}. Leave out pipelines without spread."
            )
        e = np.log(squares) - special.digamma(v / 2) + np.log(v / 2)
        excess = float(np.var(e, ddof=1) - np.mean(special.polygamma(1, v / 2)))
        most = float(v.sum())
        if excess <= 0:
            return cls(float(np.average(squares, weights=v)), np.inf, most)
        half = _trigamma_inverse(excess)
        variance = np.exp(e.mean() + special.digamma(half) - np.log(half))
        return cls(float(variance), 2 * half, most)

    def moderate(self, variance: float, degrees: float) -> tuple[float, float]:
        """The moderated variance of one pipeline, and its degrees of freedom.

        Args:
            variance: s² over its runs; ignored if `degrees` is 0.
            degrees: v, its number of runs minus one.
        """
        if not np.isfinite(self.degrees):
            return self.variance, self.most_degrees
        total = self.degrees + degrees
        pooled = self.degrees * self.variance + (degrees * variance if degrees else 0.0)
        return pooled / total, min(total, self.most_degrees)


def moderated_difference(
    a: Sequence[float] | NDArray[np.floating],
    b: Sequence[float] | NDArray[np.floating],
    family: FamilyNoise,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """The mean of B minus that of A for few runs, with the noise of their family.

    SE² = s̃²(1/m_a + 1/m_b), where s̃² is the moderated pooled variance of both pipelines.

    Args:
        a: Values of A, `(num_runs_a,)`, at least 1.
        b: Values of B, `(num_runs_b,)`, at least 1.
        family: Noise fitted to other pipelines.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: No runs, or values that are not finite.

    Example:
        >>> family = FamilyNoise(variance=0.01, degrees=20.0, most_degrees=90.0)
        >>> moderated_difference([1.0], [0.6], family).excludes(0.0)
        True

    Reference:
        Smyth (2004), see `FamilyNoise`.
    """
    check_confidence(confidence)
    a, b = check_runs("a", a), check_runs("b", b)
    _, error, degrees = moderated_error(a, b, family)
    return t_estimate(float(b.mean() - a.mean()), error, degrees, confidence, min(a.size, b.size))


def moderated_error(
    a: NDArray[np.float64], b: NDArray[np.float64], family: FamilyNoise
) -> tuple[float, float, float]:
    """The moderated variance of a run, the standard error of B − A, and their degrees of freedom.

    Example:
        >>> family = FamilyNoise(variance=0.02, degrees=20.0, most_degrees=90.0)
        >>> moderated_error(np.array([1.0]), np.array([0.6]), family)
        (0.02, 0.2, 20.0)
    """
    own = a.size + b.size - 2
    squares = float(np.sum((a - a.mean()) ** 2) + np.sum((b - b.mean()) ** 2))
    variance, degrees = family.moderate(squares / max(own, 1), own)
    return variance, float(np.sqrt(variance * (1 / a.size + 1 / b.size))), degrees


def _trigamma_inverse(value: float) -> float:
    """Solves ψ'(y) = value > 0 by Newton's method on 1/ψ', which is convex."""
    y = 0.5 + 1 / value
    for _ in range(50):
        trigamma = special.polygamma(1, y)
        step = trigamma * (1 - trigamma / value) / special.polygamma(2, y)
        y += step
        if abs(step) < 1e-10 * y:
            break
    return float(y)
