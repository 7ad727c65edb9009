"""The tables of effects read again: what `FieldBias` knows before an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from keras_calibration._rows.line import Line
from keras_calibration._solvers.effects import numeric_column
from keras_calibration._solvers.field_offsets import Spreads
from keras_calibration._solvers.field_update import Belief, Known

# Smallest share of its prior variance that a coefficient has: less is rounding.
_SMALLEST_VARIANCE = 1e-10


class Tables(NamedTuple):
    """The weights of a fitted `FieldBias`, float64.

    Args:
        line: Slope and bias.
        factor: Theirs, as in the posterior.
        deviations: s of each feature.
        offsets: Of each field, the offsets (num_values,), and the table of these and "other".
        curves: Of each numeric column, its knots (K,), its values and its table (K + 1, …).
        last: t, r and V of the level of now; None without time.
        noise: Standard deviation of what of it does not persist.
        means: The line from the logits of the fit to those that are served.
    """

    line: np.ndarray
    factor: np.ndarray
    deviations: np.ndarray
    offsets: Sequence[tuple[np.ndarray, np.ndarray]]
    curves: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
    last: np.ndarray | None
    noise: float
    means: Line


def known_of(tables: Tables) -> Known:
    """What the tables say of the logits of the fit."""
    scale, num_fields = tables.means.scale, len(tables.offsets)
    spreads = tables.deviations
    offsets = []
    for spread, (values, table) in zip(spreads, tables.offsets, strict=False):
        variances, responses = table[:-1, 0] / scale**2, table[:-1, 1:3]
        precisions = np.maximum(spread**2 / variances, 1.0)
        offsets.append(Belief(values / scale / spread, precisions, responses / spread))
    curves, root = _known_curves(tables.curves, spreads[num_fields:], scale)
    level = 0.0, np.zeros(2)
    if tables.last is not None:
        variance = max(tables.last[0] - tables.noise**2, 0.0) + float(np.sum(tables.last[3:] ** 2))
        level = variance**0.5 / scale, tables.last[1:3]
    return Known(
        line=(tables.line - [0.0, tables.means.shift]) / scale,
        information=_information(tables.factor / scale),
        spreads=Spreads(spreads, 0.0),
        unknown=np.array([table[-1, 0] ** 0.5 / scale for _, table in tables.offsets]),
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
    curves: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], spreads: np.ndarray, scale: float
) -> tuple[Belief, np.ndarray]:
    """What is known of all curves, in coefficients that are independent before and after."""
    if not curves:
        return Belief(np.zeros(0), np.zeros(0), np.zeros((0, 2))), np.zeros((0, 0))
    bases = [
        spread * numeric_column(knots, knots).basis
        for spread, (knots, _, _) in zip(spreads, curves, strict=True)
    ]
    inverse = block_diag(*map(np.linalg.pinv, bases))
    values = np.concatenate([values for _, values, _ in curves]) / scale
    table = np.concatenate([table for _, _, table in curves])
    factor = inverse @ (table[:, 3:] / scale)
    covariance = factor @ factor.T + (inverse * (table[:, 0] / scale**2)) @ inverse.T
    variances, directions = np.linalg.eigh(covariance)
    belief = Belief(
        means=directions.T @ inverse @ values,
        precisions=1 / np.clip(variances, _SMALLEST_VARIANCE, 1.0),
        responses=directions.T @ inverse @ table[:, 1:3],
    )
    return belief, block_diag(*bases) @ directions
