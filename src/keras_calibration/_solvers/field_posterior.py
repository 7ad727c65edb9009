"""The posterior variances of a common line, of the offsets of field values, and of curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from keras_calibration._solvers.covariance import covariance_factor
from keras_calibration._solvers.effects import CurvesEffect, Sums, TableEffect
from keras_calibration._solvers.field_effects import Derivatives, FieldEffects

# Spreads s over which the posterior of the effects is averaged.
_SPREADS = np.geomspace(1e-3, 10.0, 65)


@dataclass(frozen=True)
class FieldPosterior:
    """The posterior variance `|xᵀF|² + Σ_f t_f[z_f] + Σ_j t_j(x_j)` of the logit.

    Each part takes the other parts as known at their fitted values. That neglects the covariances
    between parts, which are negative for values that occur in the same rows. The sum is then too
    large.

    Args:
        factor: F (q, q): the covariance of β is `F Fᵀ`.
        variances: t of each field (num_values,): mean squared differences between true and fitted
            offsets, averaged over s_f.
        spreads: Root mean square of s_f of each field (fields,): the standard deviation of the
            offset of a value without rows.
        curve_variances: t of each numeric column, at its knots and for missing values (K + 1,).
    """

    factor: np.ndarray
    variances: list[np.ndarray]
    spreads: np.ndarray
    curve_variances: list[np.ndarray]

    def scaled(self, scale: float) -> FieldPosterior:
        """The posterior of the logits times a factor."""
        return FieldPosterior(
            factor=scale * self.factor,
            variances=[scale**2 * variance for variance in self.variances],
            spreads=scale * self.spreads,
            curve_variances=[scale**2 * variance for variance in self.curve_variances],
        )


def field_posterior(fit: FieldEffects, are_pooled: bool = False) -> FieldPosterior:
    """The posterior of a finished fit with one offset per field value, and curves.

    The fit takes the most probable spread s_f as known. If it is small, or there are few positives,
    s_f could be several times as large. Intervals given s_f then hold the truth in 70 to 85 % of
    the cases instead of 95 %. So t is averaged over the posterior of s_f, on a grid. All curves are
    one block, with the root mean squares of their s_j.

    Args:
        fit: The fit.
        are_pooled: Whether its spreads come from `improve_spreads`. The posterior of each spread is
            then scaled so that its mode is this spread.
    """
    derivatives = [fit.derivatives(number) for number in range(len(fit.effects))]
    averaged, curve_variances = [], []
    for effect, at_effect in zip(fit.effects, derivatives, strict=True):
        if isinstance(effect, TableEffect):
            averaged.append(_average_over_spread(fit, effect, at_effect, are_pooled))
        elif isinstance(effect, CurvesEffect):
            curve_variances = _find_variances(effect, at_effect.sums, fit.log_prior)
    return FieldPosterior(
        # Parameters at their bounds count as known: they have no variance.
        factor=covariance_factor(derivatives[0].hessian, fit.beta > fit.lower),
        variances=[v for v, _ in averaged],
        spreads=np.array([s for _, s in averaged]),
        curve_variances=curve_variances,
    )


def _find_variances(effect: CurvesEffect, sums: Sums, log_prior: Callable) -> list[np.ndarray]:
    """The t of the curves, with the posterior mean of s² of each group, given the other s."""
    squares = []
    for likelihood in effect.scale_likelihoods(*sums[:2]):
        # The grid is even in log s, whose density is s times that of s; a further s makes the prior
        # flat in s² near 0. Together: + 2 log s.
        densities = likelihood(_SPREADS) + 2 * np.log(_SPREADS)
        squares.append(_weigh_spreads(densities, log_prior) @ _SPREADS**2)
    factor = covariance_factor(sums[1][0] + np.diag(1 / np.array(squares)[effect.group]))
    return [np.sum(curve**2, axis=1) for curve in effect.on_knots(factor)]


def _weigh_spreads(log_densities: np.ndarray, log_prior: Callable) -> np.ndarray:
    """Posterior probabilities of s on the grid, from its log likelihoods."""
    densities = log_densities + log_prior(_SPREADS)
    return np.asarray(np.exp(densities - special.logsumexp(densities)))


def _average_over_spread(
    fit: FieldEffects, table: TableEffect, derivatives: Derivatives, is_pooled: bool
) -> tuple[np.ndarray, float]:
    """Mean squared deviations of offsets from the fitted û, and the root mean square of s.

    Given s, the offset of a value has the mean `W e` and the variance `W = 1 / (h + 1 / s²)`, where
    h is its curvature and `e = h û - g`. The prior of s is the fit's prior times s, so it is flat
    in s² near 0. With a prior that is flat in s, intervals would hold the truth too rarely. The
    posterior of s, with β and the offsets integrated out, is proportional to its prior times

        exp(½ Σ W e² + ½ bᵀ S⁻¹ b) / sqrt(|S| Π (1 + s² h)),  S = B - Cᵀ W C,

    where b is the gradient by β at its fitted value with the offsets `W e`. This function takes the
    offsets of other fields as known at their fitted values.

    Reference:
        Kass and Steffey (1989), *Approximate Bayesian Inference in Conditionally Independent
        Hierarchical Models*; Morris and Tang (2011), *Estimating Random Effects via Adjustment for
        Density Maximization*, for the prior.
    """
    # The pieces of a Gaussian integral over β (a few) and the offsets (one at a time, as their
    # Hessian is diagonal), around the fit.
    free = fit.beta > fit.lower
    gradient, hessian, sums = derivatives
    offsets = table.coefficients[:-1, 0]
    curvatures = sums[1][:-1, 0, 0]
    line_cross = sums[2][:-1, 0][:, free]
    scores = curvatures * offsets - sums[0][:-1, 0]
    # For each s, the products of C and e with W give Cᵀ W C, Cᵀ W e and eᵀ W e at once.
    terms = np.column_stack([line_cross, scores])
    by_spread = np.stack([terms.T @ (terms / (curvatures + s**-2)[:, None]) for s in _SPREADS])
    # S is the Schur complement of the offsets: integrating over them leaves it as the Hessian of β.
    matrices = hessian[np.ix_(free, free)] - by_spread[:, :-1, :-1]
    # The gradient of β where all offsets are 0, and what integrating over them adds.
    line_gradients = gradient[free] - line_cross.T @ offsets + by_spread[:, :-1, -1]
    # A pseudoinverse: a direction of β that the rows hardly determine then explains nothing.
    inverses = np.linalg.pinv(matrices, hermitian=True)
    explained = np.einsum("sq,sqr,sr->s", line_gradients, inverses, line_gradients)
    volumes = np.linalg.slogdet(matrices)[1] + [np.log1p(s**2 * curvatures).sum() for s in _SPREADS]
    # The log density of log s on the grid, without its prior: + 2 log s as in `_find_variances`.
    densities = 0.5 * (by_spread[:, -1, -1] + explained - volumes) + 2 * np.log(_SPREADS)
    shares, spreads = _weigh_spreads(densities, fit.log_prior), _SPREADS
    if is_pooled:
        # Pooling has moved the mode of s. The grid moves with it, and the shape of the posterior
        # stays.
        spreads = spreads * (table.deviations[0] / spreads[np.argmax(shares)])
    variances = np.zeros_like(offsets)
    for share, spread in zip(shares, spreads, strict=True):
        # The law of total variance: the mean of the variances given s, and the squared distances of
        # the means given s from the fitted offsets.
        given_s = 1 / (curvatures + spread**-2)
        variances += share * (given_s + (given_s * scores - offsets) ** 2)
    return variances, float(np.sqrt(shares @ spreads**2))
