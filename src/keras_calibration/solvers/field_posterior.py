"""The posterior of a common line and of the offsets of field values, given their spreads."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse.linalg

from keras_calibration.solvers.covariance import covariance_factor
from keras_calibration.solvers.field_effects import FieldEffects

# Relative residual of the conjugate gradients, and their largest number of steps.
_TOLERANCE = 1e-5
_LARGEST_NUM_STEPS = 200


@dataclass(frozen=True)
class FieldPosterior:
    """The posterior variance of `βᵀx + Σ_f u_f[z_f]`: `Σ_f t_f[z_f] + |(x - Σ_f r_f[z_f])ᵀ F|²`.

    Args:
        variances: t of each field (num_values,): of the offsets, given β.
        responses: r of each field (num_values, q): if β rises by dβ, the offset falls by `rᵀ dβ`.
        factor: F (q, q): the covariance of β is `F Fᵀ`.
        curvature: Second derivative of the log loss of each row of the fit (n,).
    """

    variances: list[np.ndarray]
    responses: list[np.ndarray]
    factor: np.ndarray
    curvature: np.ndarray


def field_posterior(fit: FieldEffects) -> FieldPosterior:
    """The posterior of a finished fit with one offset per field value, given the spreads s_f.

    The Hessian of the penalised log loss has a block B of β, a block C of offsets and β, and a
    block D of the offsets. Then `r = D⁻¹C` and `F Fᵀ = (B - Cᵀr)⁻¹`. The equations in D are solved
    by conjugate gradients. The variance of a sum of offsets given β is a quadratic form of D⁻¹.
    With one field, D is diagonal, and all is exact. With several, the form is that of the inverse
    of D's diagonal: each offset's variance is taken given the offsets of the other fields. That
    neglects the covariance of values that occur in the same rows. It is negative, so the variance
    of their sum is too large, at most by the number of fields. Where a value has no rows, the
    variance of the other fields' offsets, which is then too small, does not cancel: the standard
    deviation is a few percent too small if the field has few values.
    """
    _, curvature, _, hessian = fit.derivatives()
    crosses = [
        fit.sums_by_value(field, curvature, curvature)[1][:, 0] for field in range(len(fit.ids))
    ]
    diagonals = [cross[:, fit.own[0]] + fit.shrinkage(field) for field, cross in enumerate(crosses)]
    diagonal, right = np.concatenate(diagonals), np.concatenate(crosses)
    ends = np.cumsum([len(each) for each in diagonals])
    is_other = np.zeros(len(diagonal), bool)
    is_other[ends - 1] = True

    def product(offsets: np.ndarray) -> np.ndarray:
        """`D u`; the offset of "other" stays 0."""
        parts = np.split(offsets.ravel(), ends[:-1])
        weighted = curvature * sum(u[ids] for u, ids in zip(parts, fit.ids, strict=True))
        sums = [
            np.bincount(ids, weighted, len(u)) + fit.shrinkage(field) * u
            for field, (u, ids) in enumerate(zip(parts, fit.ids, strict=True))
        ]
        return np.where(is_other, 0.0, np.concatenate(sums))

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
        variances=[1 / each[:-1] for each in diagonals],
        responses=[each[:-1] for each in np.split(responses, ends[:-1])],
        factor=covariance_factor(0.5 * (schur + schur.T), fit.shared > fit.lower),
        curvature=curvature,
    )
