"""The tables of effects read again: what `FieldBias` knows before an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from keras_calibration._rows.line import Line
from keras_calibration._solvers.field_update import Belief, Known
from keras_calibration._solvers.numeric_column import numeric_column

# Smallest share of its prior variance that a coefficient has: less is rounding.
_SMALLEST_VARIANCE = 1e-10
# Smaller singular values, as shares of the largest, are 0 but for rounding: a line is a walk too.
_ROUNDING = 1e-9


class Tables(NamedTuple):
    """The weights of a fitted `FieldBias`, float64.

    Args:
        line: Slope and bias.
        factor: Theirs, as in the posterior.
        offsets: Of each field, the offsets (num_values,), and the table of these and "other".
        curves: Of each numeric column, its knots (K,), its values and its table (K + 1, …).
        last: t, r and V of the level of now; None without time.
        noise: Standard deviation of what of it does not persist.
        means: The line from the logits of the fit to those that are served.
    """

    line: np.ndarray
    factor: np.ndarray
    offsets: Sequence[tuple[np.ndarray, np.ndarray]]
    curves: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
    last: np.ndarray | None
    noise: float
    means: Line


def known_of(tables: Tables) -> Known:
    """What the tables say of the logits of the fit.

    The posterior is averaged over what is not known of the spreads s. So each s is here the root
    of its mean square. The most probable s, which the fit takes, may be about 0 after few rows, and
    then nothing could be learnt from those that follow.
    """
    scale, offsets = tables.means.scale, []
    spreads = np.array([table[-1, 0] ** 0.5 / scale for _, table in tables.offsets])
    for spread, (values, table) in zip(spreads, tables.offsets, strict=True):
        variances, responses = table[:-1, 0] / scale**2, table[:-1, 1:3]
        precisions = np.maximum(spread**2 / variances, 1.0)
        offsets.append(Belief(values / scale / spread, precisions, responses / spread))
    curves, root = _known_curves(tables.curves, scale)
    level = 0.0, np.zeros(2)
    if tables.last is not None:
        variance = max(tables.last[0] - tables.noise**2, 0.0) + float(np.sum(tables.last[3:] ** 2))
        level = variance**0.5 / scale, tables.last[1:3]
    return Known(
        line=(tables.line - [0.0, tables.means.shift]) / scale,
        information=_information(tables.factor / scale),
        spreads=spreads,
        offsets=offsets,
        curves=curves,
        root=root,
        level=level,
        ends=np.cumsum([len(values) for _, values, _ in tables.curves])[:-1],
    )


def _information(factor: np.ndarray) -> np.ndarray:
    """The inverse of `F Fᵀ`; a parameter that was at its bound counts as unknown."""
    scale = np.linalg.norm(factor, axis=1)
    scale[scale == 0] = 1.0
    inverse = np.linalg.pinv(factor / scale[:, None]) / scale
    return np.asarray(inverse.T @ inverse)


def _known_curves(
    curves: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], scale: float
) -> tuple[Belief, np.ndarray]:
    """What is known of all curves, in coefficients that are independent before and after."""
    if not curves:
        return Belief(np.zeros(0), np.zeros(0), np.zeros((0, 2))), np.zeros((0, 0))
    bases = [numeric_column(knots, knots).basis for knots, _, _ in curves]
    inverses = [np.linalg.pinv(basis, rcond=_ROUNDING) for basis in bases]
    for number, (_, _, table) in enumerate(curves):
        # The least known coefficient tells s.
        spread = np.linalg.eigvalsh(_covariance(inverses[number], table / scale))[-1] ** 0.5
        bases[number], inverses[number] = bases[number] * spread, inverses[number] / spread
    inverse = block_diag(*inverses)
    table = np.concatenate([table for _, _, table in curves])
    variances, directions = np.linalg.eigh(_covariance(inverse, table / scale))
    directions = directions.T @ inverse
    values = np.concatenate([values for _, values, _ in curves]) / scale
    belief = Belief(
        means=directions @ values,
        precisions=1 / np.clip(variances, _SMALLEST_VARIANCE, 1.0),
        responses=directions @ table[:, 1:3],
    )
    return belief, np.linalg.pinv(directions, rcond=_ROUNDING)


def _covariance(inverse: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The covariance of coefficients, from the table of the curves that they give."""
    factor = inverse @ table[:, 3:]
    return np.asarray(factor @ factor.T + (inverse * table[:, 0]) @ inverse.T)
