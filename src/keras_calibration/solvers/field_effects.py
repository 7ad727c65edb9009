"""A curve of all rows and effects of field values, shrunk by scales that the data tell: NumPy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.logistic_fit import row_log_losses, sigmoid

# No curve rises less than this share of the one that it deviates from.
SMALLEST_SHARE = 0.01

_LARGEST_NUM_PASSES = 200
_LARGEST_NUM_HALVINGS = 30
# Nats a row that a further pass could still gain.
_TOLERANCE = 1e-13
_CONVERGED = 1e-10
_CURVE_TOLERANCE = 1e-6
# Offsets of a standard deviation below 1e-3 logits change nothing, above 10 nothing shrinks them.
_SCALES = np.geomspace(1e-3, 10.0, 17)
# A standard deviation is settled when a pass moves it by less than this share of itself.
_SCALE_TOLERANCE = 1e-3
_LARGEST_NUM_SCALE_PASSES = 30
# Where the standard deviations start: the first pass sets each, given the others.
_STARTING_SCALE = 0.1
# By how much a pass raises the prior precision of the bends of a shared curve that rises less.
_TIGHTENING = 4.0


@dataclass(frozen=True)
class CommonCurve:
    """The curve of all rows, `β·φ + fixed`, and what a field value may deviate from it by.

    Args:
        functions: φ at the rows (q, n).
        own: Which of them a field value has its own coefficients of (p,), the level first.
        centre: Prior mean of β (q,).
        ridge: Prior precision of β (q,).
        lower: Lower bounds of β (q,).
        fixed: What is added to the curve of each row, a number or (n,).
        slopes: Slope of each function in each segment (segments, q); None where the order of the
            logits is not to be seen to. The second function is then the straight line.
    """

    functions: np.ndarray
    own: np.ndarray
    centre: np.ndarray
    ridge: np.ndarray
    lower: np.ndarray
    fixed: Any = 0.0
    slopes: np.ndarray | None = None


class FieldEffects:
    """The parameters on their way, and one Newton step at a time.

    The curve of a row is `β·φ + Σ_f u_f[z_f]·φ_own + fixed`; β is shared by all rows, and of each
    field `u_f ~ N(0, diag(s_f²))`.

    Args:
        rows: Logits, labels and weights of n rows.
        ids: Ids of each field (n,); the number of values and above is "other", which stays at 0.
        num_values: Number of values of each field.
        log_prior: The log density of s, of an array of s in [1e-3, 10].
        curve: The curve of all rows.

    Example:
        >>> rows = Rows(np.zeros(4), np.array([0.0, 1.0, 1.0, 1.0]), None)
        >>> level = np.zeros(1)
        >>> curve = CommonCurve(np.ones((1, 4)), np.array([0]), level, level, level - np.inf)
        >>> fit = FieldEffects(rows, [np.arange(4) // 2], [2], lambda s: -s, curve)
        >>> fit.run()[1], fit.shared.round(2)
        (True, array([1.1]))
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
        # The last of each field is "other".
        self.offsets: list[np.ndarray] = [np.zeros((n + 1, len(self.own))) for n in num_values]
        # Level, slope and bends each have their standard deviation.
        self.group = np.minimum(np.arange(len(self.own)), 2)
        self.deviations = np.full((len(ids), self.group[-1] + 1), _STARTING_SCALE)
        # They follow each step: to add them up anew would take most of the time.
        self.curve = self._sum_of_curves()
        self.loss = self._loss_sum(self.curve)

    def run(self, learn_scales: bool = True) -> tuple[int, bool]:
        """Steps until nothing is gained; returns their number, and whether that was reached."""
        # The curve first, or its bias would pass for a spread of the offsets.
        for _ in range(_LARGEST_NUM_PASSES):
            if self.improve_curve() <= _CURVE_TOLERANCE:
                break
        settled, num_passes, gain = not learn_scales, 0, 0.0
        while num_passes < _LARGEST_NUM_PASSES:
            num_passes += 1
            previous = self.deviations.copy()
            gain = max(self.improve_field(field, not settled) for field in range(len(self.ids)))
            if settled and not self.tighten() and gain <= _TOLERANCE:
                break
            moved = np.abs(self.deviations - previous) / previous
            settled = settled or bool(moved.max() <= _SCALE_TOLERANCE)
            settled = settled or num_passes >= _LARGEST_NUM_SCALE_PASSES
        return num_passes, bool(gain <= _CONVERGED)

    def improve_curve(self) -> float:
        """A Newton step on β; returns the gain a row that it hoped for."""
        _, _, gradient, hessian = self._derivatives()
        step = self._solve(hessian, gradient)
        return self._take_step(step, gradient @ step)

    def improve_field(self, field: int, with_deviations: bool) -> float:
        """A Newton step on β and the offsets of one field, after its standard deviations."""
        residual, curvature, gradient, hessian = self._derivatives()
        offsets = self.offsets[field]
        by_value, cross = self._sums_by_value(field, residual, curvature)
        precision = cross[:, :, self.own]
        if with_deviations:
            for group in range(self.deviations.shape[1]):
                self._set_deviation(field, group, by_value, precision)
        shrinkage = self._shrinkage(field)
        by_value = by_value + shrinkage * offsets
        precision = precision + np.diag(shrinkage)
        # The Schur complement of the blocks.
        solved = np.linalg.solve(precision, np.concatenate([cross, by_value[:, :, None]], axis=2))
        reduction = np.tensordot(cross, solved, axes=((0, 1), (0, 1)))
        right = gradient - reduction[:, -1]
        step = self._solve(hessian - reduction[:, :-1], right)
        offset_step = solved[:, :, -1] - solved[:, :, :-1] @ step
        gain = gradient @ step + float(np.sum(by_value * offset_step))
        return self._take_step(step, gain, field, offset_step)

    def tighten(self) -> bool:
        """Shrinks the bends of a shared curve that rises too little; whether it did."""
        if self.slopes is None:
            return False
        rise, straight_rise = self.slopes @ self.shared, self.slopes[0, 1] * self.shared[1]
        too_little = bool(np.any(rise < SMALLEST_SHARE * straight_rise))
        if too_little:
            self.ridge = np.r_[self.ridge[:2], _TIGHTENING * self.ridge[2:]]
        return too_little

    def hold_shapes(self) -> None:
        """From now on, only the levels move: the first function, a constant."""
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
        """Adds what the offsets of a field make of its rows."""
        for function, column in zip(self.own, offsets.T, strict=True):
            curve += column[self.ids[field]] * self.functions[function]

    def _derivatives(self) -> tuple[np.ndarray, ...]:
        """Residual and curvature of the rows, gradient and Hessian by β."""
        one = sigmoid(self.curve)
        residual, curvature = self.weights * (one - self.labels), self.weights * one * (1 - one)
        gradient = self.functions @ residual + self.ridge * (self.shared - self.centre)
        hessian = (self.functions * curvature) @ self.functions.T + np.diag(self.ridge)
        return residual, curvature, gradient, hessian

    def _sums_by_value(
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
                if j in self.own[:i]:  # symmetric: it has been summed already
                    cross[:, i, j] = cross[:, list(self.own).index(j), function]
                else:
                    cross[:, i, j] = np.bincount(ids, weighted * other, num_values)
        by_value[-1], cross[-1] = 0.0, 0.0  # "other" stays at 0
        return by_value, cross

    def _shrinkage(self, field: int) -> np.ndarray:
        """Prior precisions of the offsets of a field (p,)."""
        return self.deviations[field, self.group] ** -2

    def _solve(self, matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
        """A step on β; a parameter at its bound that would leave it stays there."""
        free = (self.shared > self.lower) | (right < 0)
        step = np.zeros_like(right)
        step[free] = np.linalg.lstsq(matrix[np.ix_(free, free)], right[free], rcond=None)[0]
        return step

    def _prior(self, field: int | None) -> float:
        """The priors of what a step on one field moves, and of β."""
        prior = 0.5 * float(self.ridge @ (self.shared - self.centre) ** 2)
        if field is not None:
            prior += 0.5 * float(np.sum(self.offsets[field] ** 2 @ self._shrinkage(field)))
        return prior

    def _take_step(
        self, step: np.ndarray, gain: float, field: int | None = None, offset_step: Any = 0.0
    ) -> float:
        """Goes as much of the way as lowers the objective."""
        before, shared = self.loss + self._prior(field), self.shared
        offsets = np.zeros(0) if field is None else self.offsets[field]
        # A step that hopes for less than rounding is tried once.
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

    def _set_deviation(
        self, field: int, group: int, by_value: np.ndarray, precision: np.ndarray
    ) -> None:
        """Sets s of one group of offsets to its mode, given the others' and working responses."""
        inside, outside = np.flatnonzero(self.group == group), np.flatnonzero(self.group != group)
        # Scores r ~ N(0, H S H + H), from which the offsets outside the group are integrated out.
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

        scales = _SCALES
        for _ in range(4):  # each time, a finer grid between the neighbours of the best
            likelihoods = [log_likelihood(scale) for scale in scales]
            best = int(np.argmax(likelihoods + self.log_prior(scales)))
            low, high = scales[max(best - 1, 0)], scales[min(best + 1, len(scales) - 1)]
            scales = np.geomspace(low, high, 7)
        self.deviations[field, group] = scales[3]
