"""Effects of features on the logit: of the values of a field, and of numeric columns."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.linalg import lapack

from keras_calibration._solvers.numeric_column import LINES, NumericColumn, sums_by_knots

# Standard deviations below 1e-3 logits give no effects, and above 10 no shrinkage.
_SCALES = np.geomspace(1e-3, 10.0, 17)
_FRACTIONS = np.linspace(0, 1, 7)
# Initial standard deviations: the first pass sets each, given the others.
_STARTING_SCALE = 0.1
# Curves keep their Hessian until some row's logit may have moved by more than this. Until then, no
# curvature has changed by a larger share, so the step is close to Newton's in every direction.
_HESSIAN_TOLERANCE = 0.1
# The other groups ignore a change of a standard deviation by less than this share.
_UNCHANGED_SCALE = 0.01
# Blocks whose likelihoods are computed at once.
_BLOCKS_TOGETHER = 1 << 14

Array: TypeAlias = np.ndarray
# Gradient (blocks, p), Hessian of each block (blocks, p, p), and with common functions (…, p, q).
Sums = tuple[Array, Array, Array]


def solve_blocks(matrices: Array, right_sides: Array) -> Array:
    """Solutions (blocks, p, m) for positive definite matrices (blocks, p, p)."""
    if matrices.shape[1] == 1:  # there may be millions of them
        return right_sides / matrices
    if len(matrices) == 1:  # one large block: Cholesky takes half the time of LU
        _, solution, failed = lapack.dposv(matrices[0].T, right_sides[0])
        if not failed:
            return solution[None]
    return np.linalg.solve(matrices, right_sides)


def _invert(matrix: Array) -> Array:
    """The inverse of a positive definite matrix, by Cholesky: three times as fast as `inv`."""
    factor, failed = lapack.dpotrf(matrix.T)
    if failed:  # rounding made the matrix indefinite
        return np.linalg.inv(matrix)
    upper = lapack.dpotri(factor)[0]  # below the diagonal, `dpotrf` has left zeros
    inverse = upper + upper.T
    np.fill_diagonal(inverse, upper.diagonal())
    return inverse


class Effect(ABC):
    """Coefficients u in blocks. Each row uses the coefficients of one block.

    The argument `places` says which block each row uses: ids (n,), or the numeric columns.

    Args:
        num_blocks: Number of blocks.
        group: The group of each coefficient of a block (p,). The coefficients have the prior
            `N(0, diag(s²))`, with one s for each group.

    Attributes:
        coefficients: u (num_blocks, p).
        deviations: s of each group.
        hessian_tolerance: How far a row's curve may move before the Hessians are summed again.
    """

    hessian_tolerance = 0.0

    def __init__(self, num_blocks: int, group: Array) -> None:
        self.group = group
        self.coefficients = np.zeros((num_blocks, len(group)))
        self.deviations = np.full(len(np.unique(group)), _STARTING_SCALE)

    @property
    def shrinkage(self) -> Array:
        """Prior precisions of the coefficients of any block (p,)."""
        return self.deviations[self.group] ** -2

    @abstractmethod
    def add_to(self, curve: Array, places: Any, functions: Array, coefficients: Array) -> None:
        """Adds the effects to the curve of the rows (n,), in place.

        Args:
            curve: The curve (n,).
            places: Where the rows are.
            functions: The functions of the common curve at the rows (q, n).
            coefficients: Coefficients or a change of them (num_blocks, p).
        """

    @abstractmethod
    def by_coefficient(self, values: Array, places: Any, functions: Array) -> Array:
        """Sums the rows' values (n,) by coefficient (num_blocks, p): the transpose of `add_to`."""

    @abstractmethod
    def sums(self, residual: Array, curvature: Array, places: Any, functions: Array) -> Sums:
        """Gradient and Hessians of the log loss, from its derivatives at the rows (n,)."""

    def scale_likelihoods(
        self, gradient: Array, precision: Array
    ) -> Iterator[Callable[[Array], Array]]:
        """The log likelihood of s of each group, given the other current s, up to a constant.

        Args:
            gradient: Gradient (num_blocks, p), as from `sums`.
            precision: Hessian of each block (num_blocks, p, p).
        """
        # The Laplace approximation: near the current u, the rows act like one working response
        # `t = u - H⁻¹ g ~ N(0, S + H⁻¹)`. The scores `r = H t ~ N(0, H S H + H)` need no inverse.
        scores = np.einsum("vij,vj->vi", precision, self.coefficients) - gradient
        if len(self.deviations) == 1:  # no coefficients are outside the group
            yield _build_scale_likelihood(precision, scores)
            return
        for group in range(len(self.deviations)):
            # Integrating out the coefficients outside the group leaves a normal density whose
            # information is the Schur complement `H_ii - H_io (H_oo + S_o⁻¹)⁻¹ H_oi`, with its
            # scores alike.
            inside = np.flatnonzero(self.group == group)
            outside = np.flatnonzero(self.group != group)
            across = precision[:, inside][:, :, outside]
            outer = precision[:, outside][:, :, outside] + np.diag(self.shrinkage[outside])
            right = np.concatenate([across.transpose(0, 2, 1), scores[:, outside, None]], axis=2)
            explained = across @ np.linalg.solve(outer, right)
            information = precision[:, inside][:, :, inside] - explained[:, :, :-1]
            yield _build_scale_likelihood(information, scores[:, inside] - explained[:, :, -1])

    def set_deviations(self, gradient: Array, precision: Array, log_prior: Callable) -> None:
        """Sets each s to its mode, given the others and working responses."""
        for group, log_likelihood in enumerate(self.scale_likelihoods(gradient, precision)):
            scales = _SCALES
            # Grid search on log s. The likelihood can be flat or have two modes, where Newton's
            # method on s would stray.
            for _ in range(4):  # the next grid is finer, between the neighbours of the best s
                best = int(np.argmax(log_likelihood(scales) + log_prior(scales)))
                low = scales[max(best - 1, 0)]
                high = scales[min(best + 1, len(scales) - 1)]
                scales = low * (high / low) ** _FRACTIONS
            # The middle of the last grid.
            self.deviations[group] = scales[3]


def _build_scale_likelihood(information: Array, scores: Array) -> Callable[[Array], Array]:
    """The log likelihoods of s (m,) for scores (blocks, p) distributed as `N(0, s² H² + H)`."""
    # Along the eigenvectors of H, the scores are independent, `r_j ~ N(0, s² λ_j² + λ_j)`.
    if information.shape[1] == 1:  # there may be millions of them
        curvatures, along = information[:, :, 0], scores
    else:
        curvatures, directions = np.linalg.eigh(information)
        along = np.einsum("vij,vi->vj", directions, scores)
    # Directions that no row informs have no say in s.
    informed = curvatures > 1e-12 * max(curvatures.max(initial=0.0), 1.0)
    curvatures = curvatures[informed]
    squares = along[informed] ** 2

    def log_likelihood(scales: Array) -> Array:
        # `-½ [log(1 + s² λ) + r² / (λ + s² λ²)]`, without the part `-½ r² / λ - ½ log λ`, which
        # does not depend on s.
        total = np.zeros(len(scales))
        variances = scales[:, None] ** 2
        for start in range(0, len(curvatures), _BLOCKS_TOGETHER):
            part = slice(start, start + _BLOCKS_TOGETHER)
            spread = 1 + variances * curvatures[part]
            total += 0.5 * np.sum(variances * squares[part] / spread - np.log(spread), axis=1)
        return total

    return log_likelihood


class TableEffect(Effect):
    """Each value of a field has its own coefficients of some of the common functions.

    The places of the rows are ids (n,). The id `num_values` is "other", with u = 0.

    Args:
        num_values: Number of values.
        function_numbers: Numbers of these functions (p,), the level first. Level, slope and bends
            have one s each.
    """

    def __init__(self, num_values: int, function_numbers: Array) -> None:
        super().__init__(num_values + 1, np.minimum(np.arange(len(function_numbers)), 2))
        self.function_numbers = function_numbers

    def add_to(self, curve: Array, places: Array, functions: Array, coefficients: Array) -> None:
        """Adds the effects to the curve of the rows (n,), in place."""
        for number, column in zip(self.function_numbers, coefficients.T, strict=True):
            curve += column[places] * functions[number]

    def by_coefficient(self, values: Array, places: Array, functions: Array) -> Array:
        """Sums by value; 0 for "other", which stays at 0."""
        sums = np.stack(
            [
                np.bincount(places, values * functions[number], len(self.coefficients))
                for number in self.function_numbers
            ],
            axis=1,
        )
        sums[-1] = 0.0
        return sums

    def sums(self, residual: Array, curvature: Array, places: Array, functions: Array) -> Sums:
        """Sums by value."""
        num_values, num_columns = self.coefficients.shape
        cross = np.empty((num_values, num_columns, len(functions)))
        for i, number in enumerate(self.function_numbers):
            weighted = curvature * functions[number]
            for other, function in enumerate(functions):
                if other in self.function_numbers[:i]:  # symmetric: already summed
                    cross[:, i, other] = cross[:, list(self.function_numbers).index(other), number]
                else:
                    cross[:, i, other] = np.bincount(places, weighted * function, num_values)
        cross[-1] = 0.0
        return (
            self.by_coefficient(residual, places, functions),
            cross[:, :, self.function_numbers],
            cross,
        )


class CurvesEffect(Effect):
    """Each numeric column has a curve. All curves are one block, as columns are often correlated.

    The places of the rows are the numeric columns.

    Args:
        columns: The columns of any part of the rows. Each group of a column has an s. The s of the
            lines is set first: otherwise a walk, which can be nearly straight, would take the place
            of the line.
    """

    # Summing the Hessian takes most of the time of a step.
    hessian_tolerance = _HESSIAN_TOLERANCE

    def __init__(self, columns: Sequence[NumericColumn]) -> None:
        starts = np.cumsum([0, *(column.num_groups for column in columns)])
        # Lines keep the shared number; walks get numbers of their own, one column after the other.
        groups = [
            np.where(column.group == LINES, LINES, start + column.group)
            for start, column in zip(starts, columns, strict=False)
        ]
        super().__init__(1, np.unique(np.concatenate(groups), return_inverse=True)[1])
        self.bases = [column.basis for column in columns]
        self._ends = np.cumsum([basis.shape[1] for basis in self.bases])[:-1]

    def on_knots(self, coefficients: Array) -> list[Array]:
        """Values of each curve at its knots and for missing values, from coefficients (p, …)."""
        parts = np.split(coefficients, self._ends)
        return [basis @ part for basis, part in zip(self.bases, parts, strict=True)]

    def deviations_of_columns(self) -> list[float]:
        """The standard deviation of each column's curve, the mean over its knots."""
        # A curve is the sum of independent parts, line and walk, so their variances add up.
        column_groups = [np.unique(part) for part in np.split(self.group, self._ends)]
        return [float(np.linalg.norm(self.deviations[group])) for group in column_groups]

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
        """Sums over all rows, which are one block."""
        cross = [self.by_coefficient(curvature * phi, places, functions) for phi in functions]
        return (
            self.by_coefficient(residual, places, functions),
            self._compute_hessian(places, curvature)[None],
            np.stack(cross, axis=2),
        )

    def scale_likelihoods(
        self, gradient: Array, precision: Array
    ) -> Iterator[Callable[[Array], Array]]:
        """The log likelihood of each s, given the others; earlier ones have their new values.

        With the old values, all redundant columns would see that the others explain the labels and
        become small together, then all large, and so on.
        """
        # One inverse serves all groups: the inverse of a block of it is a Schur complement.
        covariance = _invert(precision[0] + np.diag(self.shrinkage))
        scores = precision[0] @ self.coefficients[0] - gradient[0]
        for group, previous in enumerate(self.deviations.copy()):
            inside = self.group == group
            across = covariance[inside]
            within = across[:, inside]
            eye = np.eye(len(across))
            # The inverse of the group's block of C is the Schur complement plus the prior
            # precision; without the latter, it is the information of the rows.
            inverse = _invert(within)
            explained = inverse @ (across @ scores)
            yield _build_scale_likelihood((inverse - previous**-2 * eye)[None], explained[None])
            # The caller has set the s of this group by now. The Woodbury identity updates C with a
            # matrix of the group's size, instead of a new inverse of the whole block.
            change = self.deviations[group] ** -2 - previous**-2
            if abs(np.log(self.deviations[group] / previous)) > _UNCHANGED_SCALE:
                covariance -= across.T @ np.linalg.solve(eye + change * within, change * across)

    def _compute_hessian(self, columns: Sequence[NumericColumn], curvature: Array) -> Array:
        """Hessian by all coefficients (p, p)."""
        hessian = np.empty((len(self.group), len(self.group)))
        places = [slice(a, b) for a, b in itertools.pairwise([0, *self._ends, len(hessian)])]
        # Rows are summed by pairs of knots first. The bases, far smaller than the rows, turn these
        # sums into the Hessian `Σ_i h_i (B₁ᵀ φ_i) (φ_iᵀ B₂)`.
        for i, first in enumerate(columns):
            for j, second in enumerate(columns[i:], start=i):
                block = first.basis.T @ sums_by_knots(first, second, curvature) @ second.basis
                hessian[places[i], places[j]], hessian[places[j], places[i]] = block, block.T
        return hessian
