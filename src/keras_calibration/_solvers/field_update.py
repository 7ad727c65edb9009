"""The update of a fit by new rows: its posterior is the prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from keras_calibration._solvers.effects import CurvesEffect, Effect, OffsetsEffect, Sums
from keras_calibration._solvers.field_effects import CommonCurve, FieldEffects
from keras_calibration._solvers.field_index import FieldIndex, with_unseen
from keras_calibration._solvers.field_offsets import (
    SLOPE_PRECISION,
    FieldOffsets,
    OffsetRows,
    Spreads,
)
from keras_calibration._solvers.field_posterior import FieldPosterior, posterior_of_known
from keras_calibration._solvers.level import LevelColumn
from keras_calibration._solvers.logistic_fit import SMALLEST_SCALE
from keras_calibration._solvers.numeric_column import NumericColumn, sums_by_knots
from keras_calibration._solvers.row_blocks import RowBlock


@dataclass(frozen=True)
class Belief:
    """What is known of coefficients with the prior N(0, 1): independent normals, given the line.

    Args:
        means: Their means (k,) at the line's own mean.
        precisions: Their precisions (k,), at least 1.
        responses: r (k, 2): if the line rises by dβ, they fall by `rᵀ dβ`.
    """

    means: np.ndarray
    precisions: np.ndarray
    responses: np.ndarray


@dataclass(frozen=True)
class Known:
    """What is known before the new rows.

    Args:
        line: Means of slope and bias (2,), the bias with the level of now.
        information: The precision of these (2, 2).
        spreads: s of each field, the standard deviation of the offset of a value without rows.
        offsets: Of each field, what is known of `u / s` (num_values,).
        curves: What is known of the coefficients of all curves.
        root: Values of the curves at all knots, and of missing values, by coefficient (ΣK, k).
        level: What is known of the level of now beside the bias: its standard deviation, and how
            it responds to the line (2,).
        ends: Where the knots of the second and further columns begin.
    """

    line: np.ndarray
    information: np.ndarray
    spreads: np.ndarray
    offsets: list[Belief]
    curves: Belief
    root: np.ndarray
    level: tuple[float, np.ndarray]
    ends: np.ndarray

    def on_knots(self, coefficients: np.ndarray) -> list[np.ndarray]:
        """What coefficients (k, …) of the curves give each of them."""
        return np.split(self.root @ coefficients, self.ends) if len(self.root) else []

    def with_another_curve(self, share: float) -> Known:
        """What is known of the slope of another η, whose line explains all but a share of it.

        The variance of the slope grows by this share of its square, at the same centre.
        """
        (of_slope, both), (_, of_bias) = self.information
        centre = both / of_bias if of_bias > 0 else 0.0
        precision = of_slope - centre * both
        if not precision > 0:
            return self
        lower = precision - 1 / (1 / precision + share * self.line[0] ** 2)
        return replace(self, information=self.information - [[lower, 0.0], [0.0, 0.0]])

    def after_forgetting(self, share: float) -> Known:
        """What the same rows had told with weights of `1 - share`.

        The log likelihood of the rows, a parabola about its maximum, is multiplied by 1 - share;
        the prior of the coefficients stays. So offsets and curves move towards 0.
        """
        kept, beliefs = 1 - share, [*self.offsets, self.curves]
        information, right, found = kept * self.information, np.zeros(2), []
        for each in beliefs:
            precisions = 1 + kept * (each.precisions - 1)
            cross = kept * each.precisions[:, None] * each.responses
            responses = cross / precisions[:, None]
            information = information + each.responses.T @ cross - responses.T @ cross
            right = right + share * responses.T @ each.means
            found.append(replace(each, precisions=precisions, responses=responses))
        change = np.linalg.lstsq(information, right, rcond=None)[0]
        found = [
            replace(
                each,
                means=each.means - share * each.means / each.precisions - each.responses @ change,
            )
            for each in found
        ]
        deviation, response = self.level if kept else (0.0, np.zeros(2))
        return replace(
            self,
            line=self.line + change - [0.0, response @ change],
            information=information,
            offsets=found[:-1],
            curves=found[-1],
            # Without earlier rows, the bias is free, and the level is a part of it.
            level=(deviation / (kept or 1.0) ** 0.5, response),
        )


class KnownOffsets(OffsetsEffect):
    """Offsets of the values of a field about known ones, each with a precision of its own.

    Args:
        precisions: The precision of each value (num_values,).
    """

    def __init__(self, precisions: np.ndarray) -> None:
        super().__init__(len(precisions))
        self.precisions = np.append(precisions, 1.0)[:, None]

    @property
    def shrinkage(self) -> np.ndarray:
        """Prior precisions (num_values + 1, 1)."""
        return self.precisions

    def sums(
        self,
        residual: np.ndarray,
        curvature: np.ndarray,
        places: np.ndarray,
        functions: np.ndarray,
    ) -> Sums:
        """Sums by value, whose offset has another function than the line."""
        gradient, precision, *cross = (
            self.by_coefficient(values, places, functions)
            for values in (residual, curvature, *(curvature * each for each in functions))
        )
        return gradient, precision[:, :, None], np.stack(cross, 2)


class KnownCurves(CurvesEffect):
    """Curves about known ones, with coefficients of the prior N(0, 1).

    Args:
        columns: The numeric columns.
        root: Values at all their knots, and for missing values, by coefficient (ΣK, k).
    """

    def __init__(self, columns: Sequence[NumericColumn], root: np.ndarray) -> None:
        super().__init__(columns)
        self.root, self.group = root, np.zeros(root.shape[1], int)
        self.coefficients, self.deviations = np.zeros((1, root.shape[1])), np.ones(1)
        self._ends = np.cumsum([len(each.basis) for each in columns])[:-1]

    def on_knots(self, coefficients: np.ndarray) -> list[np.ndarray]:
        """What coefficients (k, …) give each column at its knots and for missing values."""
        return np.split(self.root @ coefficients, self._ends)

    def of_knots(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """The transpose of `on_knots` (k,)."""
        return np.asarray(self.root.T @ np.concatenate(values))

    def _hessian(self, columns: Sequence[NumericColumn], curvature: np.ndarray) -> np.ndarray:
        """Hessian by all coefficients (k, k)."""
        blocks = [[sums_by_knots(one, other, curvature) for other in columns] for one in columns]
        return self.root.T @ np.block(blocks) @ self.root


def update_field_offsets(
    rows: OffsetRows, known: Known, level: LevelColumn | None = None
) -> FieldOffsets:
    """Fits slope, bias, offsets and curves to new rows, with a normal prior: the earlier posterior.

    Offsets and curves are independent given the line β, and respond to it: `u = w - r dβ`, with w
    independent of β. So the functions of the common curve are `φ - Σ r`, and the effects are the w,
    each about its known mean with its own precision. The optimum is found, and described, by the
    same steps as that of a fit. The spreads stay.

    Args:
        rows: The new rows, with η as logits, and their numeric columns on the known knots.
        known: What is known before.
        level: The level over the times of the rows, from what it was before; None without time.

    Returns:
        The fit. Its bias is without the change of the level, the last of its curves.
    """
    index = FieldIndex.of([rows.ids], [len(each.means) for each in known.offsets], [rows.weights])
    columns = list(rows.columns)
    before = _offsets_of(known)
    functions = np.stack([rows.logits, np.ones_like(rows.logits)])
    functions = functions - _responses_at_rows(known, rows, level)
    fixed = before.logits(rows)
    functions, line, basis = _common_curve(functions, known, rows)
    pairs = zip(known.spreads, known.offsets, strict=True)
    effects: list[Effect] = [
        KnownOffsets(each.precisions[seen] / spread**2)
        for seen, (spread, each) in zip(index.seen, pairs, strict=True)
    ]
    places: list[Any] = list(index.places[0])
    root = known.root / np.sqrt(known.curves.precisions)
    if level is not None:
        columns, root = [*columns, level.column], block_diag(root, level.column.basis)
    if columns:
        effects.append(KnownCurves(columns, root))
        places.append(columns)
    block = RowBlock(functions, rows.labels, rows.weights, places, fixed)
    fit = FieldEffects([block], effects, np.zeros_like, line)
    num_passes, converged = fit.run(learn_scales=False)
    return replace(
        _moved(before, known, fit, index, basis),
        posterior=_posterior_by_id(known, fit, index, basis),
        log_loss=fit.loss / fit.total,
        num_iterations=num_passes,
        converged=converged,
    )


def _offsets_of(known: Known) -> FieldOffsets:
    """The known means as a fit."""
    slope, bias = known.line
    return FieldOffsets(
        slope=float(slope),
        bias=float(bias),
        offsets=[s * each.means for s, each in zip(known.spreads, known.offsets, strict=True)],
        curves=known.on_knots(known.curves.means),
        deviations=known.spreads,
        spreads=Spreads(known.spreads, 0.0),
        posterior=None,
        log_loss=np.nan,
        num_iterations=0,
        converged=True,
    )


def _responses_at_rows(known: Known, rows: OffsetRows, level: LevelColumn | None) -> np.ndarray:
    """By how much the effects of each row fall if slope or bias rise by 1, (2, n)."""
    found = known.level[1][:, None] if level is not None else np.zeros((2, 1))
    for spread, each, own in zip(known.spreads, known.offsets, rows.ids, strict=True):
        values = np.vstack([spread * each.responses, np.zeros(2)])
        found = found + values[np.minimum(own, len(each.means))].T
    of_curves = known.on_knots(known.curves.responses)
    for column, values in zip(rows.columns, of_curves, strict=False):
        found = found + np.stack([column.at_rows(each) for each in values.T])
    return found


def _common_curve(
    functions: np.ndarray, known: Known, rows: OffsetRows
) -> tuple[np.ndarray, CommonCurve, np.ndarray]:
    """The change of the line, in coordinates γ of independent priors; and T, with `dβ = T γ`.

    Returns:
        The functions of γ at the rows (2, n), its prior, and T.
    """
    (of_slope, both), (_, of_bias) = known.information
    weights = rows.row_weights
    centre = both / of_bias if of_bias > 0 else float(np.average(functions[0], weights=weights))
    away = functions[0] - centre * functions[1]
    middle = np.average(away, weights=weights)
    scale = float(np.sqrt(np.average((away - middle) ** 2, weights=weights))) or 1.0
    precision = (of_slope - centre * both) / scale**2
    line = CommonCurve(
        centre=np.zeros(2),
        # As in a fit, where nothing is known of the slope.
        ridge=np.array([max(precision, SLOPE_PRECISION), of_bias]),
        lower=np.array([SMALLEST_SCALE - scale * known.line[0], -np.inf]),
    )
    functions = np.stack([away / scale, functions[1]])
    return functions, line, np.array([[1 / scale, 0.0], [-centre / scale, 1.0]])


def _moved(
    before: FieldOffsets, known: Known, fit: FieldEffects, index: FieldIndex, basis: np.ndarray
) -> FieldOffsets:
    """The known means, and what the new rows change of them."""
    change = basis @ fit.shared
    tables = [each for each in fit.effects if isinstance(each, KnownOffsets)]
    changes = with_unseen(
        [each.coefficients[:-1, 0] for each in tables], index.seen, index.num_values
    )
    responses = [
        spread * each.responses @ change
        for spread, each in zip(known.spreads, known.offsets, strict=True)
    ]
    curves = list(before.curves)
    for effect in fit.effects:
        if isinstance(effect, KnownCurves):
            found = effect.on_knots(effect.coefficients[0])
            by_line = known.on_knots(known.curves.responses @ change)
            curves = [a - b + c for a, b, c in zip(before.curves, by_line, found, strict=False)]
            curves += [each - known.level[1] @ change for each in found[len(curves) :]]
    return replace(
        before,
        slope=before.slope + float(change[0]),
        bias=before.bias + float(change[1]),
        offsets=[a - b + c for a, b, c in zip(before.offsets, responses, changes, strict=True)],
        curves=curves,
    )


def _posterior_by_id(
    known: Known, fit: FieldEffects, index: FieldIndex, basis: np.ndarray
) -> FieldPosterior:
    """The posterior after the new rows, of all ids."""
    found, inverse = posterior_of_known(fit), np.linalg.inv(basis)
    variances, responses = [], []
    parts = zip(
        known.offsets,
        known.spreads,
        index.seen,
        found.variances,
        found.responses,
        strict=True,
    )
    for each, spread, seen, variance, response in parts:
        own = spread**2 / each.precisions
        own[seen] = variance
        variances.append(own)
        responses.append(spread * each.responses)
        responses[-1][seen] += response @ inverse
    of_curves = known.on_knots(known.curves.responses)
    of_curves += [known.level[1]] * (len(found.curve_responses) - len(of_curves))
    return replace(
        found,
        variances=variances,
        responses=responses,
        spreads=known.spreads,
        codes=[np.arange(len(each)) for each in variances],
        covariances=[np.zeros(len(each)) for each in variances],
        curve_responses=[
            a @ inverse + b for a, b in zip(found.curve_responses, of_curves, strict=True)
        ],
        factor=basis @ found.factor,
    )
