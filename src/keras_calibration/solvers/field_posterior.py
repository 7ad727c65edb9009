"""The posterior of a common line, of the offsets of field values, and of their spreads."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse.linalg
from scipy import special

from keras_calibration.solvers.covariance import covariance_factor
from keras_calibration.solvers.field_effects import FieldEffects

# Relative residual of the conjugate gradients, and their largest number of steps.
_TOLERANCE = 1e-5
_LARGEST_NUM_STEPS = 200
# Spreads s over which the posterior of the offsets is averaged.
_SPREADS = np.geomspace(1e-3, 10.0, 65)


@dataclass(frozen=True)
class FieldPosterior:
    """The posterior variance of `βᵀx + Σ_f u_f[z_f]`: `Σ_f t_f[z_f] + |(x - Σ_f r_f[z_f])ᵀ F|²`.

    Args:
        variances: t of each field (num_values,): mean squares of the offsets about the fitted ones,
            given β, averaged over s_f.
        spreads: Root mean square of s_f of each field (fields,): the standard deviation of the
            offset of a value without rows.
        responses: r of each field (num_values, q): if β rises by dβ, the offset falls by `rᵀ dβ`.
        factor: F (q, q): the covariance of β is `F Fᵀ`.
        curvature: Second derivative of the log loss of each row of the fit (n,).
    """

    variances: list[np.ndarray]
    spreads: np.ndarray
    responses: list[np.ndarray]
    factor: np.ndarray
    curvature: np.ndarray


def field_posterior(fit: FieldEffects, are_pooled: bool = False) -> FieldPosterior:
    """The posterior of a finished fit with one offset per field value.

    The fit takes the most probable spread s_f as known. Where that is small, or the positives few,
    s_f could be several times as large, and intervals given s_f hold the truth in 70 to 85 %
    instead of 95 %. So t is the mean square of an offset about the fitted one, averaged over the
    posterior of s_f on a grid (`_averaged_over_spread`).

    The Hessian of the penalised log loss has a block B of β, a block C of offsets and β, and a
    block D of the offsets, here with the root mean square of s_f. Then `r = D⁻¹C` and
    `F Fᵀ = (B - Cᵀr)⁻¹`. The equations in D are solved by conjugate gradients. The variance of a
    sum of offsets given β is a quadratic form of D⁻¹. With one field, D is diagonal, and the form
    exact. With several, the form is that of the inverse of D's diagonal: each offset's variance is
    taken given the offsets of the other fields. That neglects the covariance of values that occur
    in the same rows. It is negative, so the variance of their sum is too large, at most by the
    number of fields. Where a value has no rows, the variance of the other fields' offsets, which is
    then too small, does not cancel: the standard deviation is a few percent too small if the field
    has few values.

    Args:
        fit: The fit.
        are_pooled: Whether its spreads are those of `improve_spreads`: their posteriors are then
            multiplied by factors, to have their modes at these.
    """
    residual, curvature, gradient, hessian = fit.derivatives()
    sums = [fit.sums_by_value(field, residual, curvature) for field in range(len(fit.ids))]
    averaged = [
        _averaged_over_spread(fit, field, *sums[field], gradient, hessian, are_pooled)
        for field in range(len(fit.ids))
    ]
    spreads = np.array([spread for _, spread in averaged])
    crosses = [cross[:, 0] for _, cross in sums]
    diagonals = [
        cross[:, fit.own[0]] + spread**-2 for cross, spread in zip(crosses, spreads, strict=True)
    ]
    diagonal, right = np.concatenate(diagonals), np.concatenate(crosses)
    ends = np.cumsum([len(each) for each in diagonals])
    is_other = np.zeros(len(diagonal), bool)
    is_other[ends - 1] = True

    def product(offsets: np.ndarray) -> np.ndarray:
        """`D u`; the offset of "other" stays 0."""
        parts = np.split(offsets.ravel(), ends[:-1])
        weighted = curvature * sum(u[ids] for u, ids in zip(parts, fit.ids, strict=True))
        products = [
            np.bincount(ids, weighted, len(u)) + u / spread**2
            for u, ids, spread in zip(parts, fit.ids, spreads, strict=True)
        ]
        return np.where(is_other, 0.0, np.concatenate(products))

    def solved(column: np.ndarray) -> np.ndarray:
        square, operator = (len(column), len(column)), scipy.sparse.linalg.LinearOperator
        return scipy.sparse.linalg.cg(
            operator(square, product),
            column,
            rtol=_TOLERANCE,
            maxiter=_LARGEST_NUM_STEPS,
            M=operator(square, lambda direction: direction.ravel() / diagonal),
        )[0]

    responses = np.stack([solved(column) for column in right.T], axis=1)
    schur = hessian - right.T @ responses
    return FieldPosterior(
        variances=[variances for variances, _ in averaged],
        spreads=spreads,
        responses=[each[:-1] for each in np.split(responses, ends[:-1])],
        factor=covariance_factor(0.5 * (schur + schur.T), fit.shared > fit.lower),
        curvature=curvature,
    )


def _averaged_over_spread(
    fit: FieldEffects,
    field: int,
    by_value: np.ndarray,
    cross: np.ndarray,
    gradient: np.ndarray,
    hessian: np.ndarray,
    is_pooled: bool,
) -> tuple[np.ndarray, float]:
    """Mean squares of the offsets of a field about the fitted û, and the root of the mean of s².

    Given s, the offset of a value has the mean `W e` and the variance `W = 1 / (h + 1 / s²)`, where
    h is its curvature and `e = h û - g`. The prior of s is here that of the fit times s, flat in s²
    near 0, because with one flat in s the intervals hold the truth too rarely. The posterior of s,
    with β and the offsets integrated out, is proportional to its prior times

        exp(½ Σ W e² + ½ bᵀ S⁻¹ b) / sqrt(|S| Π (1 + s² h)),  S = B - Cᵀ W C,

    where b is the gradient by β at its fitted value with the offsets `W e`. The offsets of other
    fields are taken as fitted.

    Reference:
        Kass and Steffey (1989), *Approximate Bayesian Inference in Conditionally Independent
        Hierarchical Models*; Morris and Tang (2011), *Estimating Random Effects via Adjustment for
        Density Maximization*, for the prior.
    """
    free = fit.shared > fit.lower
    offsets, gradients = fit.offsets[field][:-1, 0], by_value[:-1, 0]
    line_cross = cross[:-1, 0][:, free]
    curvatures = cross[:-1, 0, fit.own[0]]
    scores = curvatures * offsets - gradients
    start = gradient[free] - line_cross.T @ offsets
    block = hessian[np.ix_(free, free)]

    def log_density(spread: float) -> float:
        """Of log s, up to a constant and its prior, with a density flat in s² near 0."""
        within = 1 / (curvatures + spread**-2)
        matrix = block - line_cross.T @ (within[:, None] * line_cross)
        by_line = start + line_cross.T @ (within * scores)
        explained = by_line @ np.linalg.lstsq(matrix, by_line, rcond=None)[0]
        volume = np.linalg.slogdet(matrix)[1] + np.log1p(spread**2 * curvatures).sum()
        return 0.5 * float(within @ scores**2 + explained - volume) + 2 * np.log(spread)

    densities = np.array([log_density(spread) for spread in _SPREADS]) + fit.log_prior(_SPREADS)
    shares = np.exp(densities - special.logsumexp(densities))
    spreads = _SPREADS
    if is_pooled:
        spreads = spreads * (fit.deviations[field, 0] / spreads[np.argmax(shares)])
    variances = np.zeros_like(offsets)
    for share, spread in zip(shares, spreads, strict=True):
        within = 1 / (curvatures + spread**-2)
        variances += share * (within + (within * scores - offsets) ** 2)
    return variances, float(np.sqrt(shares @ spreads**2))
