"""A common curve and shrunken effects of field values, with learned standard deviations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_calibration._solvers.effects import Effect, Sums, solve_blocks
from keras_calibration._solvers.newton import bounded_step
from keras_calibration._solvers.row_blocks import RowBlock

# Each curve rises by at least this share of the curve that it deviates from.
SMALLEST_SHARE = 0.01

_LARGEST_NUM_PASSES = 200
_LARGEST_NUM_HALVINGS = 30
# Passes end when a pass gains at most `_TOLERANCE` nats per row. A fit that reaches the largest
# number of passes still counts as converged if its last pass gained at most `_CONVERGED`.
_TOLERANCE = 1e-13
_CONVERGED = 1e-10
_CURVE_TOLERANCE = 1e-6
# A standard deviation is settled when a pass changes it by less than this share of itself.
_SCALE_TOLERANCE = 1e-3
_LARGEST_NUM_SCALE_PASSES = 30
# Standard deviations are set after a pass that gained at most this, in nats per row. Far from the
# optimum, probabilities may be saturated, and the working responses are then arbitrary.
_NEAR_OPTIMUM = 1e-3
# The change of a standard deviation is relative to itself, or to this (in logits) if it is smaller.
_SMALL_SCALE = 0.05
# After every so many passes, parameters are extrapolated if each step is longer than this share of
# the step before.
_PASSES_TO_EXTRAPOLATE = 5
_SMALLEST_SHARE_KEPT = 0.5
# Prior precision of an effect in a step, as a share of the precision that its rows give it.
_SMALLEST_PRECISION = 1e-12
# Factor by which a pass raises the prior precision of the bends of a common curve that is too flat.
_TIGHTENING = 4.0


@dataclass(frozen=True)
class CommonCurve:
    """The prior of β in the curve of all rows, `β·φ + fixed`.

    Args:
        centre: Prior mean of β (q,).
        ridge: Prior precision of β (q,).
        lower: Lower bounds of β (q,).
        slopes: Slope of each function in each segment (segments, q), to keep the curve increasing;
            None if it need not be. The second function is then the straight line.
    """

    centre: np.ndarray
    ridge: np.ndarray
    lower: np.ndarray
    slopes: np.ndarray | None = None


class Derivatives(NamedTuple):
    """Derivatives of the log loss, summed over all rows, with the prior of β.

    Args:
        gradient: By β (q,).
        hessian: By β (q, q).
        sums: By the coefficients of an effect; empty arrays if there is no effect.
    """

    gradient: np.ndarray
    hessian: np.ndarray
    sums: Sums


class FieldEffects:
    """The parameters of a fit, improved by one Newton step at a time.

    The logit of a row is `β·φ + fixed` plus its effects (`effects.Effect`). All rows share β. The
    rows come in blocks, and each step goes through them twice: for the derivatives, and for the
    loss after it.

    Args:
        blocks: The rows.
        effects: The effects, all 0. The fit changes them.
        log_prior: The log density of s, for an array of s in [1e-3, 10].
        curve: The prior and the bounds of the curve of all rows.
    """

    def __init__(
        self,
        blocks: Sequence[RowBlock],
        effects: Sequence[Effect],
        log_prior: Callable[[np.ndarray], np.ndarray],
        curve: CommonCurve,
    ) -> None:
        self.blocks, self.effects, self.log_prior = blocks, effects, log_prior
        self.centre, self.ridge, self.lower = curve.centre, curve.ridge, curve.lower
        self.slopes, self.beta = curve.slopes, curve.centre
        self.total_weight = float(sum(block.weights.sum() for block in blocks))
        # Derivatives whose Hessians a step may reuse, and the total move when they were summed.
        self._kept: dict[int, tuple[float, Derivatives]] = {}
        # Upper bound of the move of any row's curve, summed over all steps.
        self._moved = 0.0
        self.loss = 0.0
        self._move_to(self.beta, [effect.coefficients for effect in effects], np.inf)

    def run(
        self,
        learn_scales: bool = True,
        tolerance: float = _TOLERANCE,
        scale_tolerance: float = _SCALE_TOLERANCE,
    ) -> tuple[int, bool]:
        """Iterates until convergence; returns the number of passes and whether it converged."""
        # Fit the common curve first: otherwise its bias would look like a variance of the offsets.
        for _ in range(_LARGEST_NUM_PASSES):
            if self.improve_curve() <= _CURVE_TOLERANCE:
                break
        settled, num_passes, gain = not learn_scales, 0, 0.0
        # Block coordinate descent: each effect in turn, together with β. Until the s have settled,
        # every pass also sets them; then they are fixed, and the objective is convex.
        while num_passes < _LARGEST_NUM_PASSES:
            num_passes += 1
            sets_scales = not settled and gain <= _NEAR_OPTIMUM
            previous = self.deviations()
            last_gain = gain
            start = self._read_parameters()
            gain = max(self.improve_effect(n, sets_scales) for n in range(len(self.effects)))
            # The gain is quadratic in the step, so `_extrapolate` takes its root for the ratio of
            # steps.
            if settled and num_passes % _PASSES_TO_EXTRAPOLATE == 0:
                self._extrapolate(start, gain / last_gain if last_gain else 0.0)
            if settled and not self.tighten() and gain <= tolerance:
                break
            # The s have settled once a pass hardly changes them, or after so many passes that they
            # may go back and forth for ever.
            moved = np.abs(self.deviations() - previous) / np.maximum(previous, _SMALL_SCALE)
            settled = settled or (sets_scales and bool(moved.max() <= scale_tolerance))
            settled = settled or num_passes >= _LARGEST_NUM_SCALE_PASSES
        return num_passes, bool(gain <= _CONVERGED)

    def improve_curve(self) -> float:
        """A Newton step on β; returns the expected gain, in nats per row."""
        gradient, hessian, _ = self.derivatives()
        step, _ = bounded_step(hessian, gradient, self.beta <= self.lower)
        return self._take_step(step, gradient @ step)

    def improve_effect(self, number: int, with_deviations: bool) -> float:
        """A Newton step on β and the coefficients of an effect, after updating its s."""
        effect = self.effects[number]
        gradient, hessian, (by_block, precision, cross) = self._refresh_derivatives(number)
        if with_deviations:
            effect.set_deviations(by_block, precision, self.log_prior)
        shrinkage = effect.shrinkage
        # From here on, gradient and Hessian include the prior of u.
        by_block = by_block + shrinkage * effect.coefficients
        # Beside huge weights, rounding loses the prior, and the block could not be solved.
        floor = _SMALLEST_PRECISION * np.diagonal(precision, axis1=1, axis2=2)
        precision = precision + np.maximum(shrinkage, floor)[:, :, None] * np.eye(floor.shape[1])
        # Block elimination: solving each block for u leaves a small system for β, with the Schur
        # complement `B - Σ_v C_vᵀ P_v⁻¹ C_v` as its matrix.
        right = np.concatenate([cross, by_block[:, :, None]], axis=2)
        solution = solve_blocks(precision, right)
        reduction = cross.reshape(-1, len(gradient)).T @ solution.reshape(-1, right.shape[2])
        right = gradient - reduction[:, -1]
        step, _ = bounded_step(hessian - reduction[:, :-1], right, self.beta <= self.lower)
        # Back-substitution gives the step of u. The gain is the squared Newton decrement gᵀ H⁻¹ g,
        # twice what the quadratic model promises.
        effect_step = solution[:, :, -1] - solution[:, :, :-1] @ step
        gain = gradient @ step + float(np.sum(by_block * effect_step))
        return self._take_step(step, gain, number, effect_step)

    def derivatives(
        self, number: int | None = None, kept: Derivatives | None = None
    ) -> Derivatives:
        """Derivatives by β and the coefficients of an effect, in one pass over the rows.

        With `kept`, this method sums only the gradients, and takes the Hessians from `kept`.
        """
        gradient = self.ridge * (self.beta - self.centre)
        hessian = np.diag(self.ridge)
        sums: Any = None
        for block in self.blocks:
            residual, curvature = block.derivatives()
            functions = block.functions
            gradient = gradient + functions @ residual
            if kept is None:
                hessian = hessian + (functions * curvature) @ functions.T
            if number is not None:
                places = block.places[number]
                effect = self.effects[number]
                part: Any = (
                    effect.sums(residual, curvature, places, functions)
                    if kept is None
                    else [effect.by_coefficient(residual, places, functions)]
                )
                sums = [a + b for a, b in zip(sums, part, strict=True)] if sums else part
        if kept is not None:
            return Derivatives(gradient, kept.hessian, (*sums, *kept.sums[1:]))
        return Derivatives(gradient, hessian, sums or (np.zeros(0),) * 3)

    def _refresh_derivatives(self, number: int) -> Derivatives:
        """The derivatives for a step; Hessians are reused while the curve has hardly moved.

        All parts of a Hessian come from the same curve; mixed parts might not be positive definite.
        """
        tolerance = self.effects[number].hessian_tolerance
        moved, kept = self._kept.get(number, (0.0, None))
        if kept is not None and self._moved - moved <= tolerance:
            return self.derivatives(number, kept)
        fresh = self.derivatives(number)
        if tolerance:
            self._kept[number] = self._moved, fresh
        return fresh

    def _read_parameters(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """β, and the coefficients of the effects."""
        return self.beta, [effect.coefficients for effect in self.effects]

    def _extrapolate(self, start: tuple[np.ndarray, list[np.ndarray]], shrinkage: float) -> None:
        """Extrapolates the moves of the passes, a geometric series, to their limit.

        Where effects can replace each other, passes move the same way for a long time, each a
        little less far. If the objective would rise, the parameters stay where they are.

        Args:
            start: The parameters before the last pass.
            shrinkage: Gain of the last pass, divided by the gain of the pass before.
        """
        # Steps that shrink by the ratio ρ go on for ρ + ρ² + … = ρ / (1 - ρ) of the last one.
        share = np.sqrt(shrinkage)
        if self.slopes is not None or not _SMALLEST_SHARE_KEPT < share < 1:
            return
        factor = share / (1 - share)
        beta = self.beta + factor * (self.beta - start[0])
        pairs = zip(self._read_parameters()[1], start[1], strict=True)
        coefficients = [after + factor * (after - before) for after, before in pairs]
        if not np.any(beta < self.lower):
            self._move_to(beta, coefficients, self._compute_objective())

    def _move_to(self, beta: np.ndarray, coefficients: Sequence[np.ndarray], limit: float) -> None:
        """Sets all parameters, unless the objective would exceed a limit."""
        previous_parameters, previous_loss = self._read_parameters(), self.loss
        self._set_parameters(beta, coefficients)
        self.loss = 0.0
        for block in self.blocks:
            self._write_curve(block)
            self.loss += block.loss_of(block.next)
            block.take_step()
        # A move of all effects at once makes every kept Hessian too old.
        if self._compute_objective() <= limit:
            self._kept = {}
            return
        # Taking the step a second time swaps the old curves back, without computing them again.
        self.loss = previous_loss
        self._set_parameters(*previous_parameters)
        for block in self.blocks:
            block.take_step()

    def _set_parameters(self, beta: np.ndarray, coefficients: Sequence[np.ndarray]) -> None:
        self.beta = beta
        for effect, effect_coefficients in zip(self.effects, coefficients, strict=True):
            effect.coefficients = effect_coefficients

    def _write_curve(self, block: RowBlock) -> None:
        """Writes the curve of the current parameters as the next curve of a block."""
        functions = block.functions
        np.matmul(self.beta, functions, out=block.next)
        block.next += block.fixed
        for effect, places in zip(self.effects, block.places, strict=True):
            effect.add_to(block.next, places, functions, effect.coefficients)

    def _compute_objective(self) -> float:
        """The log loss and all priors, summed over the rows."""
        prior = self.ridge @ (self.beta - self.centre) ** 2
        prior += sum(np.sum(effect.coefficients**2 * effect.shrinkage) for effect in self.effects)
        return self.loss + 0.5 * float(prior)

    def tighten(self) -> bool:
        """Shrinks the bends of a common curve that rises too little; returns whether it did."""
        if self.slopes is None:
            return False
        # The slope of each segment; without bends, it would be the slope of the straight part.
        straight_rise = self.slopes[0, 1] * self.beta[1]
        too_little = bool(np.any(self.slopes @ self.beta < SMALLEST_SHARE * straight_rise))
        if too_little:
            self.ridge = np.r_[self.ridge[:2], _TIGHTENING * self.ridge[2:]]
        return too_little

    def deviations(self) -> np.ndarray:
        """Standard deviations of all effects."""
        return np.concatenate([effect.deviations for effect in self.effects])

    def set_deviations(self, deviations: np.ndarray) -> None:
        """Sets the standard deviations of all effects, in their order."""
        ends = np.cumsum([len(effect.deviations) for effect in self.effects])[:-1]
        for effect, effect_deviations in zip(self.effects, np.split(deviations, ends), strict=True):
            effect.deviations = effect_deviations.copy()  # a fit writes into them

    def _take_step(
        self, step: np.ndarray, gain: float, number: int | None = None, effect_step: Any = 0.0
    ) -> float:
        """Takes the step, halved until the objective does not rise; returns the expected gain."""
        before = self._compute_objective()
        loss = self.loss
        (beta, coefficients) = self._read_parameters()
        # If the expected gain is below rounding, a shorter step cannot show a fall either.
        is_tiny = gain <= _TOLERANCE * self.total_weight
        # Backtracking: the objective is convex, so a step that is short enough does not raise it,
        # but a full Newton step may overshoot where probabilities saturate.
        for halvings in range(1 if is_tiny else _LARGEST_NUM_HALVINGS):
            size = 0.5**halvings
            self.beta = np.maximum(beta - size * step, self.lower)
            if number is not None:
                self.effects[number].coefficients = coefficients[number] - size * effect_step
            self.loss, moved = self._try_step(self.beta - beta, number, -size * effect_step)
            if self._compute_objective() <= before:
                for block in self.blocks:
                    block.take_step()
                self._moved += moved
                return gain / self.total_weight
        self.loss = loss
        self._set_parameters(beta, coefficients)
        return 0.0

    def _try_step(
        self, change: np.ndarray, number: int | None, effect_change: Any
    ) -> tuple[float, float]:
        """The loss after a change of β and of an effect, and by how much curves would move."""
        loss, moved = 0.0, 0.0
        for block in self.blocks:
            functions = block.functions
            np.matmul(change, functions, out=block.next)
            if number is not None:
                self.effects[number].add_to(
                    block.next, block.places[number], functions, effect_change
                )
            # Only kept Hessians need to know how far the curve has moved from where they were
            # summed.
            if self._kept:
                moved = max(moved, float(block.next.max()), -float(block.next.min()))
            block.next += block.curve
            loss += block.loss_of(block.next)
        return loss, moved
