"""Effects of features on the logit: of the values of a field, and of numeric columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.linalg import lapack

from keras_calibration._solvers.numeric_column import LINES, NumericColumn, sums_by_knots

# Standard deviations below 1e-3 logits give no effects, and above 10 no shrinkage.
_SCALES = np.geomspace(1e-3, 10.0, 17)
_SEVENTHS = np.linspace(0, 1, 7)
# Initial standard deviations: the first pass sets each, given the others.
_STARTING_SCALE = 0.1
# Curves keep their Hessian while no row's logit can have moved by more than this. Its curvature has
# then changed by no larger share, and a step is that far from Newton's, in every direction.
_SAME_CURVE = 0.1
# A standard deviation that changes by less than this share counts as the same for the others.
_SAME_SCALE = 0.01
# Blocks whose likelihoods are computed at once.
_BLOCKS_TOGETHER = 1 << 14

Array: TypeAlias = np.ndarray
# Gradient (blocks, p), Hessian of each block (blocks, p, p), and with common functions (…, p, q).
Sums = tuple[Array, Array, Array]


def added(total: Sequence[Array] | None, more: Sequence[Array]) -> Any:
    """The sums of arrays over parts of the rows, one part after the other; None for none yet."""
    return more if total is None else tuple(a + b for a, b in zip(total, more, strict=True))


def solved(matrices: Array, right: Array) -> Array:
    """Solutions (blocks, p, m) for positive definite matrices (blocks, p, p)."""
    if matrices.shape[1] == 1:  # there may be millions of them
        return right / matrices
    if len(matrices) == 1:  # large, and by Cholesky in half the time
        _, solution, failed = lapack.dposv(matrices[0].T, right[0])
        if not failed:
            return solution[None]
    return np.linalg.solve(matrices, right)


def _inverse(matrix: Array) -> Array:
    """The inverse of a positive definite matrix, by Cholesky in a third of the time."""
    factor, failed = lapack.dpotrf(matrix.T)
    if failed:  # by rounding
        return np.linalg.inv(matrix)
    upper = lapack.dpotri(factor)[0]  # below the diagonal, `dpotrf` has left zeros
    inverse = upper + upper.T
    np.fill_diagonal(inverse, upper.diagonal())
    return inverse


class Effect:
    """Coefficients u that rows have in common, in blocks; each row has those of one block.

    Where the rows are in an effect is told by their `places`: ids (n,), or the numeric columns.

    Args:
        num_blocks: Number of blocks.
        group: The coefficients of a block (p,) have the prior `N(0, diag(s²))`, with one s for each
            group; here is the group of each coefficient.

    Attributes:
        coefficients: u (num_blocks, p).
        deviations: s of each group.
        same_curve: By how much the curve of a row may move before Hessians are summed again.
    """

    same_curve = 0.0

    def __init__(self, num_blocks: int, group: Array) -> None:
        self.group = group
        self.coefficients = np.zeros((num_blocks, len(group)))
        self.deviations = np.full(len(np.unique(group)), _STARTING_SCALE)

    @property
    def shrinkage(self) -> Array:
        """Prior precisions of the coefficients of any block (p,)."""
        return self.deviations[self.group] ** -2

    def add_to(self, curve: Array, places: Any, functions: Array, coefficients: Array) -> None:
        """Adds the effects to the curve of the rows (n,), in place.

        Args:
            curve: The curve (n,).
            places: Where the rows are.
            functions: The functions of the common curve at the rows (q, n).
            coefficients: Coefficients or a change of them (num_blocks, p).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `add_to`.")

    def by_coefficient(self, values: Array, places: Any, functions: Array) -> Array:
        """Sums of a number of each row by coefficient (num_blocks, p): transpose of `add_to`."""
        raise NotImplementedError(f"{type(self).__name__} does not define `by_coefficient`.")

    def sums(self, residual: Array, curvature: Array, places: Any, functions: Array) -> Sums:
        """Gradient and Hessians of the log loss, from its derivatives at the rows (n,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `sums`.")

    def scale_likelihoods(
        self, gradient: Array, precision: Array
    ) -> Iterator[Callable[[Array], Array]]:
        """The log likelihood of s of each group, given the others of now, up to a constant.

        Args:
            gradient: Gradient (num_blocks, p), as from `sums`.
            precision: Hessian of each block (num_blocks, p, p).
        """
        # Scores r ~ N(0, H S H + H), with the coefficients outside the group integrated out.
        scores = np.einsum("vij,vj->vi", precision, self.coefficients) - gradient
        for group in range(len(self.deviations)):
            inside = np.flatnonzero(self.group == group)
            outside = np.flatnonzero(self.group != group)
            across = precision[:, inside][:, :, outside]
            others = precision[:, outside][:, :, outside]
            others = others + np.diag(self.deviations[self.group[outside]] ** -2)
            right = np.concatenate([across.transpose(0, 2, 1), scores[:, outside, None]], axis=2)
            explained = across @ np.linalg.solve(others, right)
            information = precision[:, inside][:, :, inside] - explained[:, :, :-1]
            yield _scale_likelihood(information, scores[:, inside] - explained[:, :, -1])

    def set_deviations(self, gradient: Array, precision: Array, log_prior: Callable) -> None:
        """Sets each s to its mode, given the others and working responses."""
        for group, log_likelihood in enumerate(self.scale_likelihoods(gradient, precision)):
            scales = _SCALES
            for _ in range(4):  # each time, on a finer grid between the neighbours of the best
                best = int(np.argmax(log_likelihood(scales) + log_prior(scales)))
                low, high = scales[max(best - 1, 0)], scales[min(best + 1, len(scales) - 1)]
                scales = low * (high / low) ** _SEVENTHS
            self.deviations[group] = scales[3]


def _scale_likelihood(information: Array, scores: Array) -> Callable[[Array], Array]:
    """The log likelihoods of s (m,) for scores (blocks, p) with the law N(0, s² H² + H)."""
    if information.shape[1] == 1:  # there may be millions of them
        curvatures, along = information[:, :, 0], scores
    else:
        curvatures, directions = np.linalg.eigh(information)
        along = np.einsum("vij,vi->vj", directions, scores)
    informed = curvatures > 1e-12 * max(curvatures.max(initial=0.0), 1.0)
    curvatures, squares = curvatures[informed], along[informed] ** 2

    def log_likelihood(scales: Array) -> Array:
        total, variances = np.zeros(len(scales)), scales[:, None] ** 2
        for start in range(0, len(curvatures), _BLOCKS_TOGETHER):
            part = slice(start, start + _BLOCKS_TOGETHER)
            spread = 1 + variances * curvatures[part]
            total += 0.5 * np.sum(variances * squares[part] / spread - np.log(spread), axis=1)
        return total

    return log_likelihood


class TableEffect(Effect):
    """Each value of a field has its own coefficients of some of the common functions.

    The places of the rows are ids (n,). Those of `num_values` are "other", with u = 0.

    Args:
        num_values: Number of values.
        own: The functions (p,), the level first. Level, slope and bends have one s each.
    """

    def __init__(self, num_values: int, own: Array) -> None:
        super().__init__(num_values + 1, np.minimum(np.arange(len(own)), 2))
        self.own = own

    def add_to(self, curve: Array, places: Array, functions: Array, coefficients: Array) -> None:
        """Adds the effects to the curve of the rows (n,), in place."""
        for function, column in zip(self.own, coefficients.T, strict=True):
            curve += column[places] * functions[function]

    def by_coefficient(self, values: Array, places: Array, functions: Array) -> Array:
        """Sums by value; 0 for "other", which stays at 0."""
        columns = [
            np.bincount(places, values * functions[function], len(self.coefficients))
            for function in self.own
        ]
        sums = np.stack(columns, axis=1)
        sums[-1] = 0.0
        return sums

    def sums(self, residual: Array, curvature: Array, places: Array, functions: Array) -> Sums:
        """Sums by value."""
        num_values, num_own = self.coefficients.shape
        cross = np.empty((num_values, num_own, len(functions)))
        for i, function in enumerate(self.own):
            weighted = curvature * functions[function]
            for j, other in enumerate(functions):
                if j in self.own[:i]:  # symmetric: already summed
                    cross[:, i, j] = cross[:, list(self.own).index(j), function]
                else:
                    cross[:, i, j] = np.bincount(places, weighted * other, num_values)
        cross[-1] = 0.0
        gradient = self.by_coefficient(residual, places, functions)
        return gradient, cross[:, :, self.own], cross

    def hold_shapes(self) -> None:
        """Keeps the coefficients of the level alone."""
        self.own, self.group = self.own[:1], self.group[:1]
        self.coefficients, self.deviations = self.coefficients[:, :1], self.deviations[:1]


class CurvesEffect(Effect):
    """Each numeric column has a curve. All of them are one block: columns are often correlated.

    The places of the rows are the numeric columns.

    Args:
        columns: The columns of any of the rows, each with an s for each of its groups. That of the
            lines comes first: a walk can be nearly straight, and would take their place.
    """

    # The Hessian takes most of the time.
    same_curve = _SAME_CURVE

    def __init__(self, columns: Sequence[NumericColumn]) -> None:
        sizes = [column.basis.shape[1] for column in columns]
        starts = np.cumsum([0, *(column.num_groups for column in columns)])
        groups = [
            np.where(column.group == LINES, LINES, start + column.group)
            for start, column in zip(starts, columns, strict=False)
        ]
        super().__init__(1, np.unique(np.concatenate(groups), return_inverse=True)[1])
        self.bases = [column.basis for column in columns]
        self._ends = np.cumsum(sizes)[:-1]

    def on_knots(self, coefficients: Array) -> list[Array]:
        """What coefficients (p, …) give each column at its knots and for missing values."""
        parts = np.split(coefficients, self._ends)
        return [basis @ part for basis, part in zip(self.bases, parts, strict=True)]

    def deviations_of_columns(self) -> list[float]:
        """The standard deviation of each column's curve, the mean over its knots."""
        groups = [np.unique(part) for part in np.split(self.group, self._ends)]
        return [float(np.linalg.norm(self.deviations[each])) for each in groups]

    def add_to(
        self, curve: Array, places: Sequence[NumericColumn], functions: Array, coefficients: Array
    ) -> None:
        """Adds the curves at the rows to the common curve (n,), in place."""
        for column, values in zip(places, self.on_knots(coefficients[0]), strict=True):
            curve += column.at_rows(values)

    def by_coefficient(
        self, values: Array, places: Sequence[NumericColumn], functions: Array
    ) -> Array:
        """Sums over all rows (1, p)."""
        pairs = zip(self.bases, places, strict=True)
        return np.concatenate([basis.T @ column.sums(values) for basis, column in pairs])[None]

    def sums(
        self, residual: Array, curvature: Array, places: Sequence[NumericColumn], functions: Array
    ) -> Sums:
        """Sums over all rows, as those of one block."""
        cross = [self.by_coefficient(curvature * each, places, functions) for each in functions]
        hessian = self._hessian(places, curvature)[None]
        gradient = self.by_coefficient(residual, places, functions)
        return gradient, hessian, np.stack(cross, axis=2)

    def scale_likelihoods(
        self, gradient: Array, precision: Array
    ) -> Iterator[Callable[[Array], Array]]:
        """The log likelihood of each s, given the others: those before it as they are set by then.

        Given the others as they were at the start, the s of columns that say the same would all
        become small, then all large, and so on.
        """
        # One inverse for all groups: the inverse of a part of it is the Schur complement.
        covariance = _inverse(precision[0] + np.diag(self.shrinkage))
        scores = precision[0] @ self.coefficients[0] - gradient[0]
        for group, before in enumerate(self.deviations.copy()):
            inside = self.group == group
            across = covariance[inside]
            own, one = across[:, inside], np.eye(len(across))
            within = _inverse(own)
            explained = within @ (across @ scores)
            yield _scale_likelihood((within - before**-2 * one)[None], explained[None])
            change = self.deviations[group] ** -2 - before**-2
            if abs(np.log(self.deviations[group] / before)) > _SAME_SCALE:
                covariance -= across.T @ np.linalg.solve(one + change * own, change * across)

    def _hessian(self, columns: Sequence[NumericColumn], curvature: Array) -> Array:
        """Hessian by all coefficients (p, p)."""
        hessian = np.empty((len(self.group), len(self.group)))
        places = np.split(np.arange(len(self.group)), self._ends)
        for i, one in enumerate(columns):
            for j, other in enumerate(columns[i:], start=i):
                by_knots = sums_by_knots(one, other, curvature)
                block = one.basis.T @ by_knots @ other.basis
                hessian[np.ix_(places[i], places[j])] = block
                hessian[np.ix_(places[j], places[i])] = block.T
        return hessian
