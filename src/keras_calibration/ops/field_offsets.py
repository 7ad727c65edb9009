"""Offsets and curves of the values of fields, shrunk by scales that the data tell: NumPy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_calibration.ops.data_checks import Rows
from keras_calibration.ops.logistic_fit import SMALLEST_SCALE, row_log_losses, sigmoid

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
# The prior of a, about 1: it matters only where clicks and non-clicks are separated.
_SLOPE_PRECISION = 1e-3
# Of each bend of the curve that all values share, about none.
_BEND_PRECISION = 1.0
# No curve rises less than this share of the one that it deviates from.
_SMALLEST_SHARE = 0.01
# By how much a pass raises the prior precision of the bends of a shared curve that rises less.
_TIGHTENING = 4.0


@dataclass(frozen=True)
class FieldOffsets:
    """The fit of `η = a l + c + Σ_f u_f[z_f]`.

    Args:
        slope: a > 0.
        bias: c.
        offsets: u of each field (num_values,).
        deviations: s of each field, the standard deviation of its offsets.
        log_loss: Mean log loss, in nats a row, without the priors.
        num_iterations: Number of passes over the fields.
        converged: Whether no further pass would gain 1e-10 nats a row.
    """

    slope: float
    bias: float
    offsets: list[np.ndarray]
    deviations: np.ndarray
    log_loss: float
    num_iterations: int
    converged: bool


@dataclass(frozen=True)
class FieldCurves:
    """The fit of `η = b(l) + Σ_f d_f[z_f](l)`, all piecewise linear on the same knots.

    Args:
        values: b at the knots (K,), increasing.
        deviations: d of each field at the knots (num_values, K).
        scales: s of each field (fields, 3): the standard deviations of levels, slopes and bends.
        log_loss: Mean log loss, in nats a row, without the priors.
        num_iterations: Number of passes over the fields.
        converged: Whether no further pass would gain 1e-10 nats a row.
    """

    values: np.ndarray
    deviations: list[np.ndarray]
    scales: np.ndarray
    log_loss: float
    num_iterations: int
    converged: bool


def fit_field_offsets(
    rows: Rows,
    ids: Sequence[np.ndarray],
    num_values: Sequence[int],
    log_prior: Callable[[np.ndarray], np.ndarray],
    fit_slope: bool = True,
) -> FieldOffsets:
    """Fits slope, bias and one offset per field value, `u_f ~ N(0, s_f²)`, s_f learned too.

    Newton steps on a, c and the offsets of one field at a time, exact in all of them: given a and c
    the values of a field do not meet, so that the Hessian is a diagonal with a border of two. In
    between, s_f is set to the mode of its marginal likelihood times its prior: with working
    responses `t_v = u_v - g_v / h_v` of precision h_v, those are `N(0, s_f² + 1 / h_v)` (penalised
    quasi-likelihood, a Laplace approximation). Once the s_f have settled, they are kept, and the
    steps go on to the one optimum.

    Args:
        rows: Logits, labels of both classes and weights (or None) of n rows.
        ids: Ids of each field (n,); `num_values` and above is "other", whose offset is 0.
        num_values: Number of values of each field.
        log_prior: The log density of s_f, of an array of s_f in [1e-3, 10].
        fit_slope: Whether a is fitted; otherwise it is 1.

    Returns:
        The fit.

    Example:
        >>> labels = np.r_[np.ones(30), np.zeros(70), np.ones(70), np.zeros(30)]
        >>> rows = Rows(np.zeros(200), labels, None)
        >>> fit = fit_field_offsets(rows, [np.arange(200) // 100], [2], lambda s: -s, False)
        >>> fit.offsets[0].round(2)
        array([-0.77,  0.77])

    Reference:
        Breslow and Clayton (1993), *Approximate Inference in Generalized Linear Mixed Models*.
    """
    one = np.ones_like(rows.logits)
    fit = _Fit(
        rows,
        ids,
        num_values,
        log_prior,
        functions=np.stack([rows.logits, one] if fit_slope else [one]),
        own=np.array([1 if fit_slope else 0]),
        centre=np.array([1.0, 0.0] if fit_slope else [0.0]),
        ridge=np.array([_SLOPE_PRECISION, 0.0] if fit_slope else [0.0]),
        lower=np.array([SMALLEST_SCALE, -np.inf] if fit_slope else [-np.inf]),
        fixed=0.0 if fit_slope else rows.logits,
    )
    num_passes, converged = fit.run()
    return FieldOffsets(
        slope=float(fit.shared[0]) if fit_slope else 1.0,
        bias=float(fit.shared[-1]),
        offsets=[offsets[:-1, 0] for offsets in fit.offsets],
        deviations=fit.deviations[:, 0],
        log_loss=fit.loss / fit.total,
        num_iterations=num_passes,
        converged=converged,
    )


def fit_field_curves(
    rows: Rows,
    knots: np.ndarray,
    ids: Sequence[np.ndarray],
    num_values: Sequence[int],
    log_prior: Callable[[np.ndarray], np.ndarray],
) -> FieldCurves:
    """Fits a piecewise-linear curve, and for each field value how its own deviates from it.

    In the basis `curve_basis(knots)` of a level, a slope and bends, the curve of all has the
    coefficients β, and a field value its own `u ~ N(0, diag(s²))`; levels, slopes and bends of a
    field each have their s. Everything goes as in `fit_field_offsets`, with blocks of K × K for
    diagonals.

    No curve rises less than a hundredth of what it deviates from: the common one, of its slope; the
    sum of a row's curves, of the common one, of whose slope each field may use an equal part. The
    bends of a common curve that would rise less are shrunk more. A deviation that would fall more
    is drawn towards its level (`within_room`), and all levels are then fitted again.

    Args:
        rows: Logits, labels of both classes and weights (or None) of n rows.
        knots: Increasing knots (K,), K ≥ 2.
        ids: Ids of each field (n,); `num_values` and above is "other", whose deviation is 0.
        num_values: Number of values of each field.
        log_prior: The log density of s, of an array of s in [1e-3, 10].

    Returns:
        The fit.

    Example:
        >>> logits = np.tile([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0], 100)
        >>> labels = np.r_[np.tile([0, 0, 1, 0, 1, 1], 50), np.tile([0, 1, 1, 0, 1, 1], 50)]
        >>> rows = Rows(logits, labels, None)
        >>> knots, site = np.array([-1.0, 1.0]), np.arange(600) // 300
        >>> fit = fit_field_curves(rows, knots, [site], [2], lambda s: -s)
        >>> (fit.values + fit.deviations[0]).round(2)
        array([[-0.59,  0.69],
               [ 0.59,  0.69]])

    Reference:
        Breslow and Clayton (1993), *Approximate Inference in Generalized Linear Mixed Models*.
    """
    basis = curve_basis(knots)
    gaps = np.diff(knots)
    segment = np.clip(np.searchsorted(knots, rows.logits, side="right") - 1, 0, len(gaps) - 1)
    share = (rows.logits - knots[segment]) / gaps[segment]
    unit = knots.std()
    straight = np.r_[knots.mean(), unit, np.zeros(len(knots) - 2)]
    ridge = np.r_[0.0, _SLOPE_PRECISION / unit**2, np.full(len(knots) - 2, _BEND_PRECISION)]
    lower = np.full(len(knots), -np.inf)
    lower[1] = SMALLEST_SCALE * unit
    fit = _Fit(
        rows,
        ids,
        num_values,
        log_prior,
        functions=(1 - share) * basis[segment].T + share * basis[segment + 1].T,
        own=np.arange(len(knots)),
        centre=straight,
        ridge=ridge,
        lower=lower,
        slopes=np.diff(basis, axis=0) / gaps[:, None],
    )
    num_passes, converged = fit.run()
    values = basis @ fit.shared
    inside = [within_room(offsets @ basis.T, values, len(ids)) for offsets in fit.offsets]
    fit.offsets = [curves @ basis / len(knots) for curves in inside]
    scales = fit.deviations[:, np.minimum(np.arange(3), len(knots) - 1)]
    level, levels = fit.shared[0], [offsets[:, :1] for offsets in fit.offsets]
    fit.hold_shapes()
    num_more, converged_again = fit.run(learn_scales=False)
    return FieldCurves(
        values=values + (fit.shared[0] - level),
        deviations=[
            (curves + (new - old))[:-1]
            for curves, new, old in zip(inside, fit.offsets, levels, strict=True)
        ],
        scales=scales,
        log_loss=fit.loss / fit.total,
        num_iterations=num_passes + num_more,
        converged=converged and converged_again,
    )


def curve_basis(knots: np.ndarray) -> np.ndarray:
    """Level, slope and bends as values at the knots: the polynomials orthonormal on them.

    Args:
        knots: Increasing knots (K,).

    Returns:
        Columns 1, `(a - mean a) / std a`, then of degrees 2 … K - 1 (K, K); the mean of the
        squares of each is 1.

    Example:
        >>> curve_basis(np.array([-1.0, 0.0, 1.0])).round(2)
        array([[ 1.  , -1.22,  0.71],
               [ 1.  ,  0.  , -1.41],
               [ 1.  ,  1.22,  0.71]])
    """
    place = (knots - knots.mean()) / knots.std()
    powers = place[:, None] ** np.arange(len(knots))
    orthogonal, triangle = np.linalg.qr(powers)
    return orthogonal * np.sign(np.diag(triangle)) * np.sqrt(len(knots))


def within_room(deviations: np.ndarray, values: np.ndarray, num_fields: int) -> np.ndarray:
    """Draws deviations towards their levels, so that no sum of one of each field lets `b` fall.

    Args:
        deviations: Deviations d at the knots (m, K).
        values: b at the knots (K,), which does not fall.
        num_fields: Number of fields that are added up; each may use an equal part of 99 % of the
            slope of b.

    Returns:
        Deviations (m, K) of the same means; those that are within their room as they are.

    Example:
        >>> within_room(np.array([[0.0, 4.0], [4.0, 0.0]]), np.array([-1.0, 1.0]), 1)
        array([[0.  , 4.  ],
               [2.99, 1.01]])
    """
    room = (1 - _SMALLEST_SHARE) * np.diff(values) / num_fields
    falls = np.maximum(-np.diff(deviations, axis=1), 0.0)
    # The part of each fall that there is room for; the knots' gaps cancel.
    parts = np.divide(room, falls, out=np.ones_like(falls), where=falls > room)
    levels = deviations.mean(axis=1, keepdims=True)
    return levels + parts.min(axis=1, keepdims=True) * (deviations - levels)


class _Fit:
    """The parameters on their way, and one Newton step at a time.

    The curve of a row is `β·φ + Σ_f u_f[z_f]·φ_own + fixed`; β is shared by all rows.

    Args:
        rows: Logits, labels and weights of n rows.
        ids: Ids of each field (n,).
        num_values: Number of values of each field.
        log_prior: The log density of s.
        functions: φ at the rows (q, n).
        own: Which of them a field value has its own coefficients of (p,), the level first.
        centre: Prior mean of β (q,).
        ridge: Prior precision of β (q,).
        lower: Lower bounds of β (q,).
        fixed: What is added to the curve of each row.
        slopes: Slope of each function in each segment (segments, q); None where the order of the
            logits is not to be seen to. The second function is then the straight line.
    """

    def __init__(
        self,
        rows: Rows,
        ids: Sequence[np.ndarray],
        num_values: Sequence[int],
        log_prior: Callable[[np.ndarray], np.ndarray],
        functions: np.ndarray,
        own: np.ndarray,
        centre: np.ndarray,
        ridge: np.ndarray,
        lower: np.ndarray,
        fixed: Any = 0.0,
        slopes: np.ndarray | None = None,
    ) -> None:
        one = np.ones_like(rows.logits)
        self.labels = one if rows.labels is None else rows.labels
        self.weights = one if rows.weights is None else rows.weights
        self.total = float(self.weights.sum())
        self.ids, self.log_prior = ids, log_prior
        self.functions, self.own, self.fixed, self.slopes = functions, own, fixed, slopes
        self.centre, self.ridge, self.lower = centre, ridge, lower
        self.shared = centre
        # The last of each field is "other".
        self.offsets: list[np.ndarray] = [np.zeros((n + 1, len(own))) for n in num_values]
        # Level, slope and bends each have their standard deviation.
        self.group = np.minimum(np.arange(len(own)), 2)
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
        return num_passes, gain <= _CONVERGED

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
        too_little = bool(np.any(rise < _SMALLEST_SHARE * straight_rise))
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
