"""The posterior of a common line, of the offsets of field values, and of their spreads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse.linalg
from scipy import special

from keras_calibration._solvers.covariance import covariance_factor
from keras_calibration._solvers.effects import CurvesEffect, Effect, Sums, TableEffect
from keras_calibration._solvers.field_effects import Derivatives, FieldEffects

# Rank of the covariance of the curves; their variances at the knots are kept in full.
CURVE_RANK = 64

# Relative residual of the conjugate gradients, and their largest number of steps.
_TOLERANCE = 1e-5
_LARGEST_NUM_STEPS = 200
# Spreads s over which the posterior of the offsets is averaged.
_SPREADS = np.geomspace(1e-3, 10.0, 65)


@dataclass(frozen=True)
class FieldPosterior:
    """The posterior variance of `βᵀx + Σ_f u_f[z_f] + Σ_j v_j(x_j)`.

    It is `Σ_f t_f[z_f] + Σ_j t_j(x_j) + |Σ_j V_j(x_j)|² + |(x - Σ_f r_f[z_f] - Σ_j r_j(x_j))ᵀ F|²`.

    Args:
        variances: t of each field (num_values,): mean squares of the offsets about the fitted ones,
            given β, averaged over s_f.
        spreads: Root mean square of s_f of each field (fields,): the standard deviation of the
            offset of a value without rows.
        responses: r of each field (num_values, q): if β rises by dβ, the offset falls by `rᵀ dβ`.
        curve_factors: V of each numeric column, at its knots and of missing values (K + 1, R): the
            covariance of all curves, given β, is about `V Vᵀ`.
        curve_variances: t of each numeric column (K + 1,): what their variances are above that.
        curve_responses: r of each numeric column (K + 1, q).
        factor: F (q, q): the covariance of β is `F Fᵀ`.
    """

    variances: list[np.ndarray]
    spreads: np.ndarray
    responses: list[np.ndarray]
    curve_factors: list[np.ndarray]
    curve_variances: list[np.ndarray]
    curve_responses: list[np.ndarray]
    factor: np.ndarray

    def curve_errors(self, number: int) -> np.ndarray:
        """Standard errors of a curve, given β, at its knots and of missing values (K + 1,)."""
        factor = self.curve_factors[number]
        return np.asarray(np.sqrt(self.curve_variances[number] + np.sum(factor**2, axis=1)))

    def scaled(self, scale: float) -> FieldPosterior:
        """The posterior of the logits times a factor."""
        square = scale**2
        return replace(
            self,
            variances=[square * each for each in self.variances],
            spreads=scale * self.spreads,
            curve_factors=[scale * each for each in self.curve_factors],
            curve_variances=[square * each for each in self.curve_variances],
            factor=scale * self.factor,
        )


def field_posterior(fit: FieldEffects, are_pooled: bool = False) -> FieldPosterior:
    """The posterior of a finished fit with one offset per field value, and curves.

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

    All curves are one block of D, so that the covariance of correlated columns is kept, up to the
    rank 64. Each s_j is there the root mean square of its posterior.

    Args:
        fit: The fit. The effects of fields come first.
        are_pooled: Whether its spreads are those of `improve_spreads`: their posteriors are then
            multiplied by factors, to have their modes at these.
    """
    found = [fit.derivatives(number) for number in range(len(fit.effects))]
    sums = [each.sums for each in found]
    averaged = [
        _averaged_over_spread(fit, effect, each, are_pooled)
        for effect, each in zip(fit.effects, found, strict=True)
        if isinstance(effect, TableEffect)
    ]
    num_fields, spreads = len(averaged), np.array([spread for _, spread in averaged])
    of_curves = [
        _mean_squares(effect, each, fit.log_prior)
        for effect, each in zip(fit.effects[num_fields:], sums[num_fields:], strict=True)
    ]
    shrinkages = [spread**-2.0 * np.ones(1) for spread in spreads]
    shrinkages += [
        squares[effect.group] ** -1
        for effect, squares in zip(fit.effects[num_fields:], of_curves, strict=True)
    ]
    return _posterior(fit, found, shrinkages, [each for each, _ in averaged], spreads)


def _posterior(
    fit: FieldEffects,
    found: Sequence[Derivatives],
    shrinkages: Sequence[np.ndarray],
    variances: list[np.ndarray],
    spreads: np.ndarray,
) -> FieldPosterior:
    """The posterior with these variances of offsets, by place."""
    num_fields, sums = len(variances), [each.sums for each in found]
    responses, remainders = _responses(fit, sums, shrinkages)
    # Nearly all of B cancels: with what is left of the equations, the error is that of r squared.
    schur = found[0].hessian - sum(
        np.tensordot(cross, response, axes=((0, 1), (0, 1)))
        + np.tensordot(response, remainder, axes=((0, 1), (0, 1)))
        for (_, _, cross), response, remainder in zip(sums, responses, remainders, strict=True)
    )
    curves = [
        _curve_covariance(effect, own, shrinkage, response)
        for effect, own, shrinkage, response in zip(
            fit.effects, sums, shrinkages, responses, strict=True
        )
        if isinstance(effect, CurvesEffect)
    ]
    factors, of_curves, curve_responses = curves[0] if curves else ([], [], [])
    return FieldPosterior(
        variances=variances,
        spreads=spreads,
        responses=[each[:-1, 0] for each in responses[:num_fields]],
        curve_factors=factors,
        curve_variances=of_curves,
        curve_responses=curve_responses,
        factor=covariance_factor(0.5 * (schur + schur.T), fit.shared > fit.lower),
    )


def _curve_covariance(
    effect: CurvesEffect, sums: Sums, shrinkage: np.ndarray, response: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """V, t and r of the curves of each numeric column."""
    factor = effect.on_knots(covariance_factor(sums[1][0] + np.diag(shrinkage)))
    ends = np.cumsum([len(each) for each in factor])[:-1]
    left, sizes, _ = np.linalg.svd(np.concatenate(factor), full_matrices=False)
    kept = (left * sizes)[:, :CURVE_RANK]
    rest = np.sum((left * sizes)[:, CURVE_RANK:] ** 2, axis=1)
    return np.split(kept, ends), np.split(rest, ends), effect.on_knots(response[0])


def _responses(
    fit: FieldEffects, sums: Sequence[Sums], shrinkages: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Solves D r = C by preconditioned conjugate gradients.

    Returns:
        r of each effect (blocks, p, q), and what is left, C - D r.
    """
    shapes = [effect.coefficients.shape for effect in fit.effects]
    ends = np.cumsum([blocks * p for blocks, p in shapes])
    inverses = [
        np.linalg.inv(precision + shrinkage[..., None] * np.eye(precision.shape[2]))
        for (_, precision, _), shrinkage in zip(sums, shrinkages, strict=True)
    ]

    def parts(column: np.ndarray) -> list[np.ndarray]:
        split = np.split(column.ravel(), ends[:-1])
        return [each.reshape(shape) for each, shape in zip(split, shapes, strict=True)]

    def product(column: np.ndarray) -> np.ndarray:
        """`D u`; the offset of "other" stays 0."""
        changes = parts(column)
        products = zip(fit.product(changes), shrinkages, changes, strict=True)
        return np.concatenate([(each + s * change).ravel() for each, s, change in products])

    def preconditioned(column: np.ndarray) -> np.ndarray:
        pairs = zip(inverses, parts(column), strict=True)
        return np.concatenate([np.einsum("vij,vj->vi", a, b).ravel() for a, b in pairs])

    right = np.concatenate([cross.reshape(-1, cross.shape[2]) for _, _, cross in sums])
    square, operator = (len(right), len(right)), scipy.sparse.linalg.LinearOperator
    columns = [
        scipy.sparse.linalg.cg(
            operator(square, product),
            column,
            rtol=_TOLERANCE,
            maxiter=_LARGEST_NUM_STEPS,
            M=operator(square, preconditioned),
        )[0]
        for column in right.T
    ]
    left = [column - product(found) for column, found in zip(right.T, columns, strict=True)]

    def by_effect(found: list[np.ndarray]) -> list[np.ndarray]:
        return [np.stack(each, axis=2) for each in zip(*map(parts, found), strict=True)]

    return by_effect(columns), by_effect(left)


def _mean_squares(effect: Effect, sums: Sums, log_prior: Callable) -> np.ndarray:
    """Posterior means of s² of each group, given the other s, with the prior of the fit times s."""
    gradient, precision, _ = sums
    means = []
    for likelihood in effect.scale_likelihoods(gradient, precision):
        densities = np.array([likelihood(spread) for spread in _SPREADS]) + log_prior(_SPREADS)
        densities += 2 * np.log(_SPREADS)
        shares = np.exp(densities - special.logsumexp(densities))
        means.append(shares @ _SPREADS**2)
    return np.array(means)


def _averaged_over_spread(
    fit: FieldEffects,
    table: TableEffect,
    found: Derivatives,
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
    gradient, hessian, sums = found
    offsets, gradients = table.coefficients[:-1, 0], sums[0][:-1, 0]
    curvatures, line_cross = sums[1][:-1, 0, 0], sums[2][:-1, 0][:, free]
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
        spreads = spreads * (table.deviations[0] / spreads[np.argmax(shares)])
    variances = np.zeros_like(offsets)
    for share, spread in zip(shares, spreads, strict=True):
        within = 1 / (curvatures + spread**-2)
        variances += share * (within + (within * scores - offsets) ** 2)
    return variances, float(np.sqrt(shares @ spreads**2))
