"""Numeric columns on their knots: a straight line and a random walk, and sums by knot."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

# Number of the group of straight lines, in the groups of each numeric column.
LINES = -1


@dataclass(frozen=True)
class NumericColumn:
    """A numeric column: where its values lie between the knots, and the basis of its curve.

    The curve has a value at each knot, and one more for missing values. The column's effect on a
    row is `(1 - share) v[left] + share v[left + 1]`.

    Args:
        left: The knot at or left of each value (n,); the number of knots where it is missing.
        share: Distance of each value from that knot, as a share of the gap to the next one (n,).
        basis: Values of the curve for each coefficient of unit variance (K + 1, p).
        group: The group of each coefficient (p,): the coefficients of a group share a standard
            deviation. Whole numbers from 0; -1 is the group of the lines, shared by all columns.
    """

    left: np.ndarray
    share: np.ndarray
    basis: np.ndarray
    group: np.ndarray

    @property
    def num_groups(self) -> int:
        """Number of standard deviations that belong to this column alone."""
        return int(self.group.max()) + 1

    def part(self, rows: slice) -> NumericColumn:
        """The column of some of the rows."""
        return replace(self, left=self.left[rows], share=self.share[rows])

    def at_rows(self, curve: np.ndarray) -> np.ndarray:
        """The value of a curve (K + 1,) at each row (n,)."""
        return curve[self.left] + self.share * np.append(np.diff(curve), 0.0)[self.left]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums values (n,) by knot (K + 1,): the transpose of `at_rows`."""
        size = len(self.basis)
        # A row gives its share to the knot on the right, and the rest to the knot on the left.
        right = np.bincount(self.left, values * self.share, size)
        sums = np.bincount(self.left, values, size) - right
        sums[1:] += right[:-1]
        return sums


def numeric_column(values: np.ndarray, knots: np.ndarray) -> NumericColumn:
    """A column on its knots, whose curve is a straight line plus a random walk over the knots.

    On the scale of `walk_places` the line is straight, and the walk even: a walk with a drift.
    The lines of all columns share one standard deviation, as in ridge regression: the standard
    deviation of a single slope would be large or 0 by chance. Each walk has its own, which the
    effect of missing values shares.

    Repeated knots are dropped. Values beyond the outermost knots are moved to them.

    Args:
        values: The column (n,), float64; NaN is missing.
        knots: Knots (K,), not decreasing.
    """
    knots = np.unique(knots)
    missing = np.isnan(values)
    inside = np.clip(np.where(missing, knots[0], values), knots[0], knots[-1])
    left = np.searchsorted(knots, inside, side="right") - 1
    # The last knot has no gap to the right; any number will do, as its share is 0.
    gaps = np.append(np.diff(knots), 1.0)
    share = (inside - knots[left]) / gaps[left]
    basis = np.zeros((len(knots) + 1, len(knots) + 1))
    # Columns: the line, the walk's directions, and the effect of missing values, last.
    basis[:-1, 0] = line_basis(knots)
    basis[:-1, 1:-1] = random_walk_basis(knots)
    basis[-1, -1] = 1.0
    return NumericColumn(
        left=np.where(missing, len(knots), left),
        share=np.where(missing, 0.0, share),
        basis=basis,
        group=np.append(LINES, np.zeros(len(knots), int)),
    )


def walk_places(knots: np.ndarray) -> np.ndarray:
    """Places of the knots (K,) on the scale on which a random walk over them has equal steps.

    One half of each step is the same for all, which suits skewed columns; the other half is
    proportional to the gap, so that a curve may change more over a long one.

    Example:
        >>> walk_places(np.array([0.0, 1.0, 4.0]))
        array([0.  , 0.75, 2.  ])
    """
    gaps = np.diff(knots)
    return np.append(0.0, np.cumsum(0.5 + 0.5 * gaps / gaps.mean())) if len(gaps) else np.zeros(1)


def line_basis(knots: np.ndarray) -> np.ndarray:
    """The straight line on the scale of `walk_places`, of mean 0 and mean square 1 (K,).

    It is 0 with a single knot.

    Example:
        >>> line_basis(np.array([0.0, 5.0]))
        array([-1.,  1.])
    """
    centred = walk_places(knots) - walk_places(knots).mean()
    return centred / (np.sqrt(np.mean(centred**2)) or 1.0)


def random_walk_basis(knots: np.ndarray) -> np.ndarray:
    """B (K, K - 1): with `θ ~ N(0, 1)`, Bθ is a random walk over the knots of mean 0.

    The variance of each step is its length on the scale of `walk_places`, times a factor that makes
    the mean variance over the knots 1.

    Example:
        >>> random_walk_basis(np.array([0.0, 5.0]))
        array([[-1.],
               [ 1.]])
    """
    places = walk_places(knots)
    # Brownian motion has the covariance min(s, t). Centring rows and columns takes its mean over
    # the knots out, and leaves the constant as the eigenvector with eigenvalue 0.
    covariance = np.minimum(places[:, None], places)
    covariance -= covariance.mean(axis=0)
    covariance -= covariance.mean(axis=1, keepdims=True)
    variances, directions = np.linalg.eigh(covariance)
    # `B = V Λ^½`, without the constant; signs are fixed, as eigenvectors have none of their own.
    basis = directions[:, 1:] * np.sqrt(np.maximum(variances[1:], 0.0))
    basis *= np.sign(basis[-1:])
    return basis / (np.sqrt(np.mean(np.sum(basis**2, axis=1))) or 1.0)


def sums_by_knots(first: NumericColumn, second: NumericColumn, weights: np.ndarray) -> np.ndarray:
    """Weighted sums of the products of the hat functions of two columns (K + 1, L + 1)."""
    shape = len(first.basis), len(second.basis)
    cell = first.left.astype(np.intp, copy=False) * shape[1] + second.left

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(cell, values, shape[0] * shape[1]).reshape(shape)

    # The hat functions at a row are 1 - s and s for its knots in one column, 1 - t and t in the
    # other; their four products need the sums of 1, s, t and s t by pair of cells.
    right = sums(weights * first.share)
    left_right = sums(weights * second.share)
    right_right = sums(weights * first.share * second.share)
    products = sums(weights) - right - left_right + right_right
    products[1:] += (right - right_right)[:-1]
    products[:, 1:] += (left_right - right_right)[:, :-1]
    products[1:, 1:] += right_right[:-1, :-1]
    return products
