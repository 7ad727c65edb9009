"""A common curve and shrunken effects of field values, with learned standard deviations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.effects import Effect, TableEffect
from keras_calibration._solvers.logistic_fit import row_log_losses

# Each curve rises by at least this share of the curve that it deviates from.
SMALLEST_SHARE = 0.01

_LARGEST_NUM_PASSES = 200
_LARGEST_NUM_HALVINGS = 30
# Largest gains of a further pass, in nats a row, at which passes end and a fit counts as converged.
_TOLERANCE = 1e-13
_CONVERGED = 1e-10
_CURVE_TOLERANCE = 1e-6
# A standard deviation is settled when a pass changes it by less than this share of itself.
_SCALE_TOLERANCE = 1e-3
_LARGEST_NUM_SCALE_PASSES = 30
# Standard deviations are set after a pass that gained at most this, in nats a row. Far from the
# optimum, where a step has gone to saturated probabilities, working responses do not tell them.
_NEAR_OPTIMUM = 1e-3
# Below this, in logits, a change of a standard deviation counts as if it were this.
_SMALL_SCALE = 0.05
# After so many passes, the parameters are extrapolated if the steps shrink this slowly.
_PASSES_TO_EXTRAPOLATE = 5
_SMALLEST_SHARE_KEPT = 0.5
# Curvature of a row of weight 1: that of saturated rows can be so small that a step overflows.
_SMALLEST_CURVATURE = 1e-16
# Prior precision of an effect in a step, as a share of the precision that its rows give it.
_SMALLEST_PRECISION = 1e-12
# Factor by which a pass raises the prior precision of the bends of a common curve that is too flat.
_TIGHTENING = 4.0


@dataclass(frozen=True)
class CommonCurve:
    """The curve of all rows, `β·φ + fixed`.

    Args:
        functions: φ at the rows (q, n).
        centre: Prior mean of β (q,).
        ridge: Prior precision of β (q,).
        lower: Lower bounds of β (q,).
        fixed: A constant part of the curve, a number or (n,).
        slopes: Slope of each function in each segment (segments, q), to keep the curve increasing;
            None if it need not be. The second function is then the straight line.
    """

    functions: np.ndarray
    centre: np.ndarray
    ridge: np.ndarray
    lower: np.ndarray
    fixed: np.ndarray | float = 0.0
    slopes: np.ndarray | None = None


class FieldEffects:
    """The parameters of a fit, improved by one Newton step at a time.

    The logit of a row is `β·φ + fixed` plus its effects (`effects.Effect`). All rows share β.

    Args:
        rows: Logits, labels and weights of n rows.
        effects: The effects, all 0. The fit changes them.
        log_prior: The log density of s, for an array of s in [1e-3, 10].
        curve: The curve of all rows.
    """

    def __init__(
        self,
        rows: Rows,
        effects: Sequence[Effect],
        log_prior: Callable[[np.ndarray], np.ndarray],
        curve: CommonCurve,
    ) -> None:
        one = np.ones_like(rows.logits)
        self.labels = one if rows.labels is None else rows.labels
        self.weights = one if rows.weights is None else rows.weights
        self.total = float(self.weights.sum())
        self.effects, self.log_prior = effects, log_prior
        self.functions, self.fixed, self.slopes = curve.functions, curve.fixed, curve.slopes
        self.centre, self.ridge, self.lower = curve.centre, curve.ridge, curve.lower
        self.shared = curve.centre
        # Updated with each step: computing the sum again would take most of the time.
        self.curve = self._sum_of_curves()
        self.loss = self._loss_sum(self.curve)

    def run(
        self,
        learn_scales: bool = True,
        tolerance: float = _TOLERANCE,
        scale_tolerance: float = _SCALE_TOLERANCE,
    ) -> tuple[int, bool]:
        """Iterates until convergence; returns the number of passes and whether it converged."""
        # The curve first: otherwise its bias would look like a variance of the offsets.
        for _ in range(_LARGEST_NUM_PASSES):
            if self.improve_curve() <= _CURVE_TOLERANCE:
                break
        settled, num_passes, gain = not learn_scales, 0, 0.0
        while num_passes < _LARGEST_NUM_PASSES:
            num_passes += 1
            sets_scales = not settled and gain <= _NEAR_OPTIMUM
            previous, last_gain, start = self._deviations(), gain, self._parameters()
            gain = max(self.improve_effect(effect, sets_scales) for effect in self.effects)
            if settled and num_passes % _PASSES_TO_EXTRAPOLATE == 0:
                self._extrapolate(start, gain / last_gain if last_gain else 0.0)
            if settled and not self.tighten() and gain <= tolerance:
                break
            moved = np.abs(self._deviations() - previous) / np.maximum(previous, _SMALL_SCALE)
            settled = settled or (sets_scales and bool(moved.max() <= scale_tolerance))
            settled = settled or num_passes >= _LARGEST_NUM_SCALE_PASSES
        return num_passes, bool(gain <= _CONVERGED)

    def improve_curve(self) -> float:
        """A Newton step on β; returns the expected gain, in nats a row."""
        _, curvature, gradient = self.derivatives()
        step = self._solve(self.hessian(curvature), gradient)
        return self._take_step(step, gradient @ step)

    def improve_effect(self, effect: Effect, with_deviations: bool) -> float:
        """A Newton step on β and the coefficients of an effect, after updating its s."""
        residual, curvature, gradient = self.derivatives()
        # All parts of the Hessian belong to one curvature, else it might not be positive.
        curvature = effect.curvature_for_step(curvature)
        hessian = self.hessian(curvature)
        by_block, precision, cross = effect.sums(residual, curvature, self.functions)
        if with_deviations:
            effect.set_deviations(by_block, precision, self.log_prior)
        shrinkage = effect.shrinkage
        by_block = by_block + shrinkage * effect.coefficients
        # A prior is lost to rounding beside huge weights, and the block could not be solved.
        least = _SMALLEST_PRECISION * np.diagonal(precision, axis1=1, axis2=2)
        precision = precision + np.maximum(shrinkage, least)[:, :, None] * np.eye(least.shape[1])
        # The Schur complement of the blocks.
        solved = np.linalg.solve(precision, np.concatenate([cross, by_block[:, :, None]], axis=2))
        reduction = np.tensordot(cross, solved, axes=((0, 1), (0, 1)))
        right = gradient - reduction[:, -1]
        step = self._solve(hessian - reduction[:, :-1], right)
        own_step = solved[:, :, -1] - solved[:, :, :-1] @ step
        gain = gradient @ step + float(np.sum(by_block * own_step))
        return self._take_step(step, gain, effect, own_step)

    def _parameters(self) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """β, the coefficients of the effects, and the curve."""
        return self.shared, [effect.coefficients for effect in self.effects], self.curve

    def _extrapolate(
        self, start: tuple[np.ndarray, list[np.ndarray], np.ndarray], shrinkage: float
    ) -> None:
        """Goes on in the direction of the last pass, to where passes like it would end.

        Where effects can stand in for each other, passes move the same way for long, each a little
        less far. The step is taken back if the objective rises.

        Args:
            start: The parameters before the last pass.
            shrinkage: Gain of the last pass, as a share of that of the one before.
        """
        share = np.sqrt(shrinkage)
        if self.slopes is not None or not _SMALLEST_SHARE_KEPT < share < 1:
            return
        end, before = self._parameters(), self._objective()
        factor = share / (1 - share)
        self.shared = end[0] + factor * (end[0] - start[0])
        for effect, first, last in zip(self.effects, start[1], end[1], strict=True):
            effect.coefficients = last + factor * (last - first)
        self.curve = end[2] + factor * (end[2] - start[2])
        self.loss = self._loss_sum(self.curve)
        if np.any(self.shared < self.lower) or not self._objective() <= before:
            self.shared, coefficients, self.curve = end
            for effect, each in zip(self.effects, coefficients, strict=True):
                effect.coefficients = each
            self.loss = self._loss_sum(self.curve)

    def _objective(self) -> float:
        """The log loss and all priors, summed over the rows."""
        shared = self._prior(None)
        return self.loss + shared + sum(self._prior(effect) - shared for effect in self.effects)

    def tighten(self) -> bool:
        """Shrinks the bends of a common curve that rises too little; returns whether it did."""
        if self.slopes is None:
            return False
        rise, straight_rise = self.slopes @ self.shared, self.slopes[0, 1] * self.shared[1]
        too_little = bool(np.any(rise < SMALLEST_SHARE * straight_rise))
        if too_little:
            self.ridge = np.r_[self.ridge[:2], _TIGHTENING * self.ridge[2:]]
        return too_little

    def hold_shapes(self, tables: Sequence[TableEffect]) -> None:
        """Fixes everything except the levels (the first function, a constant) from now on."""
        self.curve = self._sum_of_curves()
        self.loss = self._loss_sum(self.curve)
        self.functions = self.functions[:1]
        for table in tables:
            table.hold_shapes()
        self.shared, self.centre = self.shared[:1], self.centre[:1]
        self.ridge, self.lower = self.ridge[:1], self.lower[:1]
        self.fixed, self.slopes = 0.0, None
        self.fixed = self.curve - self._sum_of_curves()

    def _loss_sum(self, curve: np.ndarray) -> float:
        """The log loss, summed over the rows."""
        return float(self.weights @ row_log_losses(self.labels, curve))

    def _sum_of_curves(self) -> np.ndarray:
        curve = self.shared @ self.functions + self.fixed
        for effect in self.effects:
            effect.add_to(curve, self.functions, effect.coefficients)
        return curve

    def _deviations(self) -> np.ndarray:
        """Standard deviations of all effects."""
        return np.concatenate([effect.deviations for effect in self.effects])

    def set_deviations(self, deviations: np.ndarray) -> None:
        """Sets the standard deviations of all effects, in their order."""
        ends = np.cumsum([len(effect.deviations) for effect in self.effects])[:-1]
        for effect, own in zip(self.effects, np.split(deviations, ends), strict=True):
            effect.deviations = own

    def derivatives(self) -> tuple[np.ndarray, ...]:
        """Residual and curvature of each row, and the gradient with respect to β."""
        one = special.expit(self.curve)
        residual = self.weights * (one - self.labels)
        curvature = self.weights * np.maximum(one * (1 - one), _SMALLEST_CURVATURE)
        gradient = self.functions @ residual + self.ridge * (self.shared - self.centre)
        return residual, curvature, gradient

    def hessian(self, curvature: np.ndarray) -> np.ndarray:
        """Hessian with respect to β (q, q)."""
        return (self.functions * curvature) @ self.functions.T + np.diag(self.ridge)

    def _solve(self, matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
        """A step on β; a parameter at its bound stays there if the step would cross it."""
        free = (self.shared > self.lower) | (right < 0)
        step = np.zeros_like(right)
        step[free] = np.linalg.lstsq(matrix[np.ix_(free, free)], right[free], rcond=None)[0]
        return step

    def _prior(self, effect: Effect | None) -> float:
        """The prior terms that a step on β and one effect changes."""
        prior = 0.5 * float(self.ridge @ (self.shared - self.centre) ** 2)
        if effect is not None:
            prior += 0.5 * float(np.sum(effect.coefficients**2 * effect.shrinkage))
        return prior

    def _take_step(
        self, step: np.ndarray, gain: float, effect: Effect | None = None, own_step: Any = 0.0
    ) -> float:
        """Takes the step, halved until the objective does not rise; returns the expected gain."""
        before, shared = self.loss + self._prior(effect), self.shared
        coefficients: np.ndarray = np.zeros(0) if effect is None else effect.coefficients
        # A step whose expected gain is below rounding is tried only once.
        smallest = gain <= _TOLERANCE * self.total
        for halvings in range(1 if smallest else _LARGEST_NUM_HALVINGS):
            size = 0.5**halvings
            self.shared = np.maximum(shared - size * step, self.lower)
            curve = self.curve + (self.shared - shared) @ self.functions
            if effect is not None:
                effect.coefficients = coefficients - size * own_step
                effect.add_to(curve, self.functions, -size * own_step)
            loss = self._loss_sum(curve)
            if loss + self._prior(effect) <= before:
                self.curve, self.loss = curve, loss
                return gain / self.total
        self.shared = shared
        if effect is not None:
            effect.coefficients = coefficients
        return 0.0
