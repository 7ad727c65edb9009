"""A common curve and shrunken effects of field values, with learned standard deviations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.logistic_fit import row_log_losses

# Each curve rises by at least this share of the curve that it deviates from.
SMALLEST_SHARE = 0.01

_LARGEST_NUM_PASSES = 200
_LARGEST_NUM_HALVINGS = 30
# Largest gains of a further pass, in nats a row, at which passes end and a fit counts as converged.
_TOLERANCE = 1e-13
_CONVERGED = 1e-10
_CURVE_TOLERANCE = 1e-6
# Standard deviations below 1e-3 logits give no effects, and above 10 no shrinkage.
_SCALES = np.geomspace(1e-3, 10.0, 17)
# A standard deviation is settled when a pass changes it by less than this share of itself.
_SCALE_TOLERANCE = 1e-3
_LARGEST_NUM_SCALE_PASSES = 30
# Curvature of a row of weight 1: that of saturated rows can be so small that a step overflows.
_SMALLEST_CURVATURE = 1e-16
# Prior precision of an effect in a step, as a share of the precision that its rows give it.
_SMALLEST_PRECISION = 1e-12
# Initial standard deviations: the first pass sets each, given the others.
_STARTING_SCALE = 0.1
# Factor by which a pass raises the prior precision of the bends of a common curve that is too flat.
_TIGHTENING = 4.0


@dataclass(frozen=True)
class CommonCurve:
    """The curve of all rows, `β·φ + fixed`, and which of its functions a field value may change.

    Args:
        functions: φ at the rows (q, n).
        own: Which of them each field value has its own coefficients of (p,), the level first.
        centre: Prior mean of β (q,).
        ridge: Prior precision of β (q,).
        lower: Lower bounds of β (q,).
        fixed: A constant part of the curve, a number or (n,).
        slopes: Slope of each function in each segment (segments, q), to keep the curve increasing;
            None if it need not be. The second function is then the straight line.
    """

    functions: np.ndarray
    own: np.ndarray
    centre: np.ndarray
    ridge: np.ndarray
    lower: np.ndarray
    fixed: np.ndarray | float = 0.0
    slopes: np.ndarray | None = None


class FieldEffects:
    """The parameters of a fit, improved by one Newton step at a time.

    The curve of a row is `β·φ + Σ_f u_f[z_f]·φ_own + fixed`. All rows share β, and the coefficients
    of each field have the prior `u_f ~ N(0, diag(s_f²))`.

    Args:
        rows: Logits, labels and weights of n rows.
        ids: Ids of each field (n,). Ids of the number of values or more are "other", with u = 0.
        num_values: Number of values of each field.
        log_prior: The log density of s, for an array of s in [1e-3, 10].
        curve: The curve of all rows.
    """

    def __init__(
        self,
        rows: Rows,
        ids: Sequence[np.ndarray],
        num_values: Sequence[int],
        log_prior: Callable[[np.ndarray], np.ndarray],
        curve: CommonCurve,
    ) -> None:
        one = np.ones_like(rows.logits)
        self.labels = one if rows.labels is None else rows.labels
        self.weights = one if rows.weights is None else rows.weights
        self.total = float(self.weights.sum())
        self.ids, self.log_prior = ids, log_prior
        self.functions, self.own = curve.functions, curve.own
        self.fixed, self.slopes = curve.fixed, curve.slopes
        self.centre, self.ridge, self.lower = curve.centre, curve.ridge, curve.lower
        self.shared = curve.centre
        # The last value of each field is "other".
        self.offsets: list[np.ndarray] = [np.zeros((n + 1, len(self.own))) for n in num_values]
        # Level, slope and bends have one standard deviation each.
        self.group = np.minimum(np.arange(len(self.own)), 2)
        self.deviations = np.full((len(ids), self.group[-1] + 1), _STARTING_SCALE)
        # Updated with each step: computing the sum again would take most of the time.
        self.curve = self._sum_of_curves()
        self.loss = self._loss_sum(self.curve)

    def run(self, learn_scales: bool = True, tolerance: float = _TOLERANCE) -> tuple[int, bool]:
        """Iterates until convergence; returns the number of passes and whether it converged."""
        # The curve first: otherwise its bias would look like a variance of the offsets.
        for _ in range(_LARGEST_NUM_PASSES):
            if self.improve_curve() <= _CURVE_TOLERANCE:
                break
        settled, num_passes, gain = not learn_scales, 0, 0.0
        while num_passes < _LARGEST_NUM_PASSES:
            num_passes += 1
            previous = self.deviations.copy()
            gain = max(self.improve_field(field, not settled) for field in range(len(self.ids)))
            if settled and not self.tighten() and gain <= tolerance:
                break
            moved = np.abs(self.deviations - previous) / previous
            settled = settled or bool(moved.max() <= _SCALE_TOLERANCE)
            settled = settled or num_passes >= _LARGEST_NUM_SCALE_PASSES
        return num_passes, bool(gain <= _CONVERGED)

    def improve_curve(self) -> float:
        """A Newton step on β; returns the expected gain, in nats a row."""
        _, _, gradient, hessian = self.derivatives()
        step = self._solve(hessian, gradient)
        return self._take_step(step, gradient @ step)

    def improve_field(self, field: int, with_deviations: bool) -> float:
        """A Newton step on β and the offsets of a field, after updating its standard deviations."""
        residual, curvature, gradient, hessian = self.derivatives()
        offsets = self.offsets[field]
        by_value, cross = self.sums_by_value(field, residual, curvature)
        precision = cross[:, :, self.own]
        if with_deviations:
            for group in range(self.deviations.shape[1]):
                self._set_deviation(field, group, by_value, precision)
        shrinkage = self.shrinkage(field)
        by_value = by_value + shrinkage * offsets
        # A prior is lost to rounding beside huge weights, and the block could not be solved.
        least = _SMALLEST_PRECISION * np.diagonal(precision, axis1=1, axis2=2)
        precision = precision + np.maximum(shrinkage, least)[:, :, None] * np.eye(len(self.own))
        # The Schur complement of the blocks.
        solved = np.linalg.solve(precision, np.concatenate([cross, by_value[:, :, None]], axis=2))
        reduction = np.tensordot(cross, solved, axes=((0, 1), (0, 1)))
        right = gradient - reduction[:, -1]
        step = self._solve(hessian - reduction[:, :-1], right)
        offset_step = solved[:, :, -1] - solved[:, :, :-1] @ step
        gain = gradient @ step + float(np.sum(by_value * offset_step))
        return self._take_step(step, gain, field, offset_step)

    def tighten(self) -> bool:
        """Shrinks the bends of a common curve that rises too little; returns whether it did."""
        if self.slopes is None:
            return False
        rise, straight_rise = self.slopes @ self.shared, self.slopes[0, 1] * self.shared[1]
        too_little = bool(np.any(rise < SMALLEST_SHARE * straight_rise))
        if too_little:
            self.ridge = np.r_[self.ridge[:2], _TIGHTENING * self.ridge[2:]]
        return too_little

    def hold_shapes(self) -> None:
        """Fixes everything except the levels (the first function, a constant) from now on."""
        level = self.functions[:1]
        levels = self.shared[:1] @ level + sum(
            offsets[ids, 0] for offsets, ids in zip(self.offsets, self.ids, strict=True)
        )
        self.curve = self._sum_of_curves()
        self.loss = self._loss_sum(self.curve)
        self.fixed, self.slopes = self.curve - levels, None
        self.functions, self.own, self.group = level, self.own[:1], self.group[:1]
        self.shared, self.centre = self.shared[:1], self.centre[:1]
        self.ridge, self.lower = self.ridge[:1], self.lower[:1]
        self.offsets = [offsets[:, :1] for offsets in self.offsets]
        self.deviations = self.deviations[:, :1]

    def _loss_sum(self, curve: np.ndarray) -> float:
        """The log loss, summed over the rows."""
        return float(self.weights @ row_log_losses(self.labels, curve))

    def _sum_of_curves(self) -> np.ndarray:
        curve = self.shared @ self.functions + self.fixed
        for field, offsets in enumerate(self.offsets):
            self._add_field(curve, field, offsets)
        return curve

    def _add_field(self, curve: np.ndarray, field: int, offsets: np.ndarray) -> None:
        """Adds the effects of a field to the curve of each row."""
        for function, column in zip(self.own, offsets.T, strict=True):
            curve += column[self.ids[field]] * self.functions[function]

    def derivatives(self) -> tuple[np.ndarray, ...]:
        """Residual and curvature of each row, and gradient and Hessian with respect to β."""
        one = special.expit(self.curve)
        residual = self.weights * (one - self.labels)
        curvature = self.weights * np.maximum(one * (1 - one), _SMALLEST_CURVATURE)
        gradient = self.functions @ residual + self.ridge * (self.shared - self.centre)
        hessian = (self.functions * curvature) @ self.functions.T + np.diag(self.ridge)
        return residual, curvature, gradient, hessian

    def sums_by_value(
        self, field: int, residual: np.ndarray, curvature: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (values, p) and Hessian by own and all coefficients (values, p, q)."""
        ids, (num_values, num_own) = self.ids[field], self.offsets[field].shape
        by_value = np.empty((num_values, num_own))
        cross = np.empty((num_values, num_own, len(self.functions)))
        for i, function in enumerate(self.own):
            by_value[:, i] = np.bincount(ids, residual * self.functions[function], num_values)
            weighted = curvature * self.functions[function]
            for j, other in enumerate(self.functions):
                if j in self.own[:i]:  # symmetric: already summed
                    cross[:, i, j] = cross[:, list(self.own).index(j), function]
                else:
                    cross[:, i, j] = np.bincount(ids, weighted * other, num_values)
        by_value[-1], cross[-1] = 0.0, 0.0  # "other" stays at 0
        return by_value, cross

    def shrinkage(self, field: int) -> np.ndarray:
        """Prior precisions of the offsets of a field (p,)."""
        return self.deviations[field, self.group] ** -2

    def _solve(self, matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
        """A step on β; a parameter at its bound stays there if the step would cross it."""
        free = (self.shared > self.lower) | (right < 0)
        step = np.zeros_like(right)
        step[free] = np.linalg.lstsq(matrix[np.ix_(free, free)], right[free], rcond=None)[0]
        return step

    def _prior(self, field: int | None) -> float:
        """The prior terms that a step on β and one field changes."""
        prior = 0.5 * float(self.ridge @ (self.shared - self.centre) ** 2)
        if field is not None:
            prior += 0.5 * float(np.sum(self.offsets[field] ** 2 @ self.shrinkage(field)))
        return prior

    def _take_step(
        self, step: np.ndarray, gain: float, field: int | None = None, offset_step: Any = 0.0
    ) -> float:
        """Takes the step, halved until the objective does not rise; returns the expected gain."""
        before, shared = self.loss + self._prior(field), self.shared
        offsets = np.zeros(0) if field is None else self.offsets[field]
        # A step whose expected gain is below rounding is tried only once.
        smallest = gain <= _TOLERANCE * self.total
        for halvings in range(1 if smallest else _LARGEST_NUM_HALVINGS):
            size = 0.5**halvings
            self.shared = np.maximum(shared - size * step, self.lower)
            curve = self.curve + (self.shared - shared) @ self.functions
            if field is not None:
                self.offsets[field] = offsets - size * offset_step
                self._add_field(curve, field, -size * offset_step)
            loss = self._loss_sum(curve)
            if loss + self._prior(field) <= before:
                self.curve, self.loss = curve, loss
                return gain / self.total
        self.shared = shared
        if field is not None:
            self.offsets[field] = offsets
        return 0.0

    def scale_likelihood(
        self, field: int, group: int, by_value: np.ndarray, precision: np.ndarray
    ) -> Callable[[float], float]:
        """The log likelihood of s of one group of offsets, given all others, up to a constant.

        Args:
            field: Number of the field.
            group: 0 for the levels, 1 for the slopes, 2 for the bends.
            by_value: Gradient (values, p), as from `sums_by_value`.
            precision: Hessian by the field's own coefficients (values, p, p).
        """
        inside, outside = np.flatnonzero(self.group == group), np.flatnonzero(self.group != group)
        # Scores r ~ N(0, H S H + H), with the offsets outside the group integrated out.
        scores = np.einsum("vij,vj->vi", precision, self.offsets[field]) - by_value
        across = precision[:, inside][:, :, outside]
        others = precision[:, outside][:, :, outside]
        others = others + np.diag(self.deviations[field, self.group[outside]] ** -2)
        right = np.concatenate([across.transpose(0, 2, 1), scores[:, outside, None]], axis=2)
        explained = across @ np.linalg.solve(others, right)
        information = precision[:, inside][:, :, inside] - explained[:, :, :-1]
        curvatures, directions = np.linalg.eigh(information)
        along = np.einsum("vij,vi->vj", directions, scores[:, inside] - explained[:, :, -1])
        informed = curvatures > 1e-12 * max(curvatures.max(initial=0.0), 1.0)
        curvatures, squares = curvatures[informed], along[informed] ** 2

        def log_likelihood(scale: float) -> float:
            spread = 1 + scale**2 * curvatures
            return 0.5 * float(np.sum(scale**2 * squares / spread - np.log(spread)))

        return log_likelihood

    def _set_deviation(
        self, field: int, group: int, by_value: np.ndarray, precision: np.ndarray
    ) -> None:
        """Sets s of one group of offsets to its mode, given the others and working responses."""
        log_likelihood = self.scale_likelihood(field, group, by_value, precision)
        scales = _SCALES
        for _ in range(4):  # each time, on a finer grid between the neighbours of the best
            likelihoods = [log_likelihood(scale) for scale in scales]
            best = int(np.argmax(likelihoods + self.log_prior(scales)))
            low, high = scales[max(best - 1, 0)], scales[min(best + 1, len(scales) - 1)]
            scales = np.geomspace(low, high, 7)
        self.deviations[field, group] = scales[3]
