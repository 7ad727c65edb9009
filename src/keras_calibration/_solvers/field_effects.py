"""A common curve and shrunken effects of field values, with learned standard deviations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_calibration._solvers.effects import Effect, Sums, TableEffect, added, solved
from keras_calibration._solvers.row_blocks import RowBlock

# Each curve rises by at least this share of the curve that it deviates from.
SMALLEST_SHARE = 0.01

_LARGEST_NUM_PASSES = 200
_LARGEST_NUM_HALVINGS = 30
# Largest gains of a further pass, in nats per row, at which passes end and a fit counts as
# converged.
_TOLERANCE = 1e-13
_CONVERGED = 1e-10
_CURVE_TOLERANCE = 1e-6
# A standard deviation is settled when a pass changes it by less than this share of itself.
_SCALE_TOLERANCE = 1e-3
_LARGEST_NUM_SCALE_PASSES = 30
# Standard deviations are set after a pass that gained at most this, in nats per row. Far from the
# optimum, where a step has gone to saturated probabilities, working responses do not tell them.
_NEAR_OPTIMUM = 1e-3
# Below this, in logits, a change of a standard deviation counts as if it were this.
_SMALL_SCALE = 0.05
# After so many passes, the parameters are extrapolated if the steps shrink this slowly.
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
        sums: By the coefficients of an effect; without, that of none.
    """

    gradient: np.ndarray
    hessian: np.ndarray
    sums: Sums


class _Kept(NamedTuple):
    """Hessians that a step may use again, and how far the curve had moved when they were summed."""

    moved: float
    hessian: np.ndarray
    of_effect: tuple[np.ndarray, np.ndarray]


class FieldEffects:
    """The parameters of a fit, improved by one Newton step at a time.

    The logit of a row is `β·φ + fixed` plus its effects (`effects.Effect`). All rows share β. The
    rows come in blocks, and each step goes through them twice: for the derivatives, and for the
    loss after it.

    Args:
        blocks: The rows.
        effects: The effects, all 0. The fit changes them.
        log_prior: The log density of s, for an array of s in [1e-3, 10].
        curve: What is known of the curve of all rows.
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
        self.slopes, self.shared = curve.slopes, curve.centre
        self.total = float(sum(block.weights.sum() for block in blocks))
        self._kept: dict[int, _Kept] = {}
        # By how much the curve of any row can have moved, over all steps.
        self._moved = 0.0
        self.loss = 0.0
        self._move_to(self.shared, [effect.coefficients for effect in effects], np.inf)

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
            previous, last_gain, start = self.deviations(), gain, self._parameters()
            gain = max(self.improve_effect(n, sets_scales) for n in range(len(self.effects)))
            if settled and num_passes % _PASSES_TO_EXTRAPOLATE == 0:
                self._extrapolate(start, gain / last_gain if last_gain else 0.0)
            if settled and not self.tighten() and gain <= tolerance:
                break
            moved = np.abs(self.deviations() - previous) / np.maximum(previous, _SMALL_SCALE)
            settled = settled or (sets_scales and bool(moved.max() <= scale_tolerance))
            settled = settled or num_passes >= _LARGEST_NUM_SCALE_PASSES
        return num_passes, bool(gain <= _CONVERGED)

    def improve_curve(self) -> float:
        """A Newton step on β; returns the expected gain, in nats per row."""
        gradient, hessian, _ = self.derivatives()
        step = self._solve(hessian, gradient)
        return self._take_step(step, gradient @ step)

    def improve_effect(self, number: int, with_deviations: bool) -> float:
        """A Newton step on β and the coefficients of an effect, after updating its s."""
        effect = self.effects[number]
        gradient, hessian, (by_block, precision, cross) = self._derivatives_for_step(number)
        if with_deviations:
            effect.set_deviations(by_block, precision, self.log_prior)
        shrinkage = effect.shrinkage
        by_block = by_block + shrinkage * effect.coefficients
        # A prior is lost to rounding beside huge weights, and the block could not be solved.
        least = _SMALLEST_PRECISION * np.diagonal(precision, axis1=1, axis2=2)
        precision = precision + np.maximum(shrinkage, least)[:, :, None] * np.eye(least.shape[1])
        # The Schur complement of the blocks.
        right = np.concatenate([cross, by_block[:, :, None]], axis=2)
        solution = solved(precision, right)
        reduction = cross.reshape(-1, len(gradient)).T @ solution.reshape(-1, right.shape[2])
        right = gradient - reduction[:, -1]
        step = self._solve(hessian - reduction[:, :-1], right)
        own_step = solution[:, :, -1] - solution[:, :, :-1] @ step
        gain = gradient @ step + float(np.sum(by_block * own_step))
        return self._take_step(step, gain, number, own_step)

    def derivatives(self, number: int | None = None) -> Derivatives:
        """Derivatives by β and the coefficients of an effect, in one pass over the rows."""
        gradient, hessian = self._prior_gradient(), np.diag(self.ridge)
        sums: Sums | None = None
        for block in self.blocks:
            residual, curvature = block.derivatives()
            functions = block.functions
            gradient = gradient + functions @ residual
            hessian = hessian + (functions * curvature) @ functions.T
            if number is not None:
                places, effect = block.places[number], self.effects[number]
                sums = added(sums, effect.sums(residual, curvature, places, functions))
        return Derivatives(gradient, hessian, sums or (np.zeros(0),) * 3)

    def _derivatives_for_step(self, number: int) -> Derivatives:
        """The derivatives, with Hessians of a little before where an effect is content with them.

        All parts of a Hessian belong to one curve, else it might not be positive.
        """
        effect, kept = self.effects[number], self._kept.get(number)
        if kept is None or self._moved - kept.moved > effect.same_curve:
            found = self.derivatives(number)
            if effect.same_curve:
                self._kept[number] = _Kept(self._moved, found.hessian, found.sums[1:])
            return found
        gradient, by_block = self._prior_gradient(), np.zeros_like(effect.coefficients)
        for block in self.blocks:
            residual, functions = block.derivatives()[0], block.functions
            gradient = gradient + functions @ residual
            by_block = by_block + effect.by_coefficient(residual, block.places[number], functions)
        return Derivatives(gradient, kept.hessian, (by_block, *kept.of_effect))

    def _prior_gradient(self) -> np.ndarray:
        return self.ridge * (self.shared - self.centre)

    def _parameters(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """β, and the coefficients of the effects."""
        return self.shared, [effect.coefficients for effect in self.effects]

    def _extrapolate(self, start: tuple[np.ndarray, list[np.ndarray]], shrinkage: float) -> None:
        """Goes on in the direction of the last pass, to where passes like it would end.

        Where effects can stand in for each other, passes move the same way for long, each a little
        less far. The step is not taken if the objective would rise.

        Args:
            start: The parameters before the last pass.
            shrinkage: Gain of the last pass, as a share of that of the one before.
        """
        share = np.sqrt(shrinkage)
        if self.slopes is not None or not _SMALLEST_SHARE_KEPT < share < 1:
            return
        factor = share / (1 - share)
        shared = self.shared + factor * (self.shared - start[0])
        pairs = zip(self._parameters()[1], start[1], strict=True)
        coefficients = [now + factor * (now - first) for now, first in pairs]
        if not np.any(shared < self.lower):
            self._move_to(shared, coefficients, self._objective())

    def _move_to(self, shared: np.ndarray, coefficients: Sequence[np.ndarray], most: float) -> None:
        """Sets all parameters, unless the objective would be more than so much."""
        before, loss = self._parameters(), self.loss
        self._set_parameters(shared, coefficients)
        self.loss = 0.0
        for block in self.blocks:
            self._write_curve(block)
            self.loss += block.loss_of(block.next)
            block.take_step()
        if self._objective() <= most:
            self._kept = {}
            return
        self.loss = loss
        self._set_parameters(*before)
        for block in self.blocks:
            block.take_step()

    def _set_parameters(self, shared: np.ndarray, coefficients: Sequence[np.ndarray]) -> None:
        self.shared = shared
        for effect, each in zip(self.effects, coefficients, strict=True):
            effect.coefficients = each

    def _write_curve(self, block: RowBlock) -> None:
        """Writes what the parameters give the rows of a block as its next curve."""
        functions = block.functions
        np.matmul(self.shared, functions, out=block.next)
        block.next += block.fixed
        for effect, places in zip(self.effects, block.places, strict=True):
            effect.add_to(block.next, places, functions, effect.coefficients)

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
        for block in self.blocks:
            self._write_curve(block)
            block.take_step()
        for table in tables:
            table.hold_shapes()
        self.shared, self.centre = self.shared[:1], self.centre[:1]
        self.ridge, self.lower, self.slopes = self.ridge[:1], self.lower[:1], None
        for block in self.blocks:
            block.functions, block.fixed = block.functions[:1], 0.0
            self._write_curve(block)
            block.fixed = block.curve - block.next
        self._kept, self.loss = {}, sum(block.loss_of(block.curve) for block in self.blocks)

    def deviations(self) -> np.ndarray:
        """Standard deviations of all effects."""
        return np.concatenate([effect.deviations for effect in self.effects])

    def set_deviations(self, deviations: np.ndarray) -> None:
        """Sets the standard deviations of all effects, in their order."""
        ends = np.cumsum([len(effect.deviations) for effect in self.effects])[:-1]
        for effect, own in zip(self.effects, np.split(deviations, ends), strict=True):
            effect.deviations = own.copy()  # a fit writes into them

    def _solve(self, matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
        """A step on β; a parameter at its bound stays there if the step would cross it."""
        free = (self.shared > self.lower) | (right < 0)
        step = np.zeros_like(right)
        step[free] = np.linalg.lstsq(matrix[free][:, free], right[free], rcond=None)[0]
        return step

    def _prior(self, effect: Effect | None) -> float:
        """The prior terms that a step on β and one effect changes."""
        prior = 0.5 * float(self.ridge @ (self.shared - self.centre) ** 2)
        if effect is not None:
            prior += 0.5 * float(np.sum(effect.coefficients**2 * effect.shrinkage))
        return prior

    def _take_step(
        self, step: np.ndarray, gain: float, number: int | None = None, own_step: Any = 0.0
    ) -> float:
        """Takes the step, halved until the objective does not rise; returns the expected gain."""
        effect = None if number is None else self.effects[number]
        before, shared = self.loss + self._prior(effect), self.shared
        coefficients: np.ndarray = np.zeros(0) if effect is None else effect.coefficients
        # A step whose expected gain is below rounding is tried only once.
        smallest = gain <= _TOLERANCE * self.total
        for halvings in range(1 if smallest else _LARGEST_NUM_HALVINGS):
            size = 0.5**halvings
            self.shared = np.maximum(shared - size * step, self.lower)
            if effect is not None:
                effect.coefficients = coefficients - size * own_step
            loss, moved = self._try_step(self.shared - shared, number, -size * own_step)
            if loss + self._prior(effect) <= before:
                for block in self.blocks:
                    block.take_step()
                self.loss, self._moved = loss, self._moved + moved
                return gain / self.total
        self.shared = shared
        if effect is not None:
            effect.coefficients = coefficients
        return 0.0

    def _try_step(
        self, change: np.ndarray, number: int | None, own_change: Any
    ) -> tuple[float, float]:
        """The loss after a change of β and of an effect, and by how much curves would move."""
        loss, moved = 0.0, 0.0
        for block in self.blocks:
            functions = block.functions
            np.matmul(change, functions, out=block.next)
            if number is not None:
                places = block.places[number]
                self.effects[number].add_to(block.next, places, functions, own_change)
            if self._kept:
                moved = max(moved, float(block.next.max()), -float(block.next.min()))
            block.next += block.curve
            loss += block.loss_of(block.next)
        return loss, moved
