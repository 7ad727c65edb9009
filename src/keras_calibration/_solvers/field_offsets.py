"""Offsets and curves of field values, shrunk by standard deviations learned from the data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import special

from keras_calibration._rows.line import Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.effects import CurvesEffect, Effect, TableEffect
from keras_calibration._solvers.field_effects import SMALLEST_SHARE, CommonCurve, FieldEffects
from keras_calibration._solvers.field_index import FieldIndex
from keras_calibration._solvers.field_posterior import FieldPosterior, field_posterior
from keras_calibration._solvers.field_spreads import improve_spreads
from keras_calibration._solvers.logistic_fit import SMALLEST_SCALE, one_thread
from keras_calibration._solvers.newton import Solved
from keras_calibration._solvers.numeric_column import NumericColumn
from keras_calibration._solvers.row_blocks import RowBlock, row_parts

# Prior precision of a about 1: it matters only where positives and negatives are separated.
SLOPE_PRECISION = 1e-3
# Prior precision of each bend of the common curve about 0.
_BEND_PRECISION = 1.0
# A fit to a part of the rows ends at these tolerances, of the gain and of the s.
_PART_TOLERANCE, _PART_SCALES = 1e-8, 0.03


class Spreads(NamedTuple):
    """The standard deviations of the effects, fields first, and the factor that fields share.

    Args:
        deviations: s of each field, then s of the curves, in the order of `CurvesEffect`.
        factor: The factor by which `improve_spreads` multiplied the s of fields; 0 if it did not.
    """

    deviations: np.ndarray
    factor: float


@dataclass(frozen=True)
class OffsetRows(Rows):
    """The rows of a fit of offsets and curves.

    Args:
        ids: Ids (n,) of each field. An id of `num_values` or more is "other", with the offset 0.
        columns: The numeric columns.
    """

    ids: Sequence[np.ndarray] = ()
    columns: Sequence[NumericColumn] = ()


@dataclass(frozen=True)
class FieldOffsets(Solved):
    """The fit of `η = a l + c + Σ_f u_f[z_f] + Σ_j v_j(x_j)`.

    Args:
        slope: a > 0.
        bias: c.
        offsets: u of each field (num_values,).
        curves: v of each numeric column: at its knots, and for missing values.
        deviations: Standard deviation of the offsets of each field, and of the curve of each
            numeric column, line and walk together.
        spreads: The s that were fitted, from which fits to parts of the rows start.
        posterior: The covariance of slope, bias, offsets and curves. A value without rows has the
            variance of the offsets, averaged over s.
    """

    slope: float
    bias: float
    offsets: list[np.ndarray]
    curves: list[np.ndarray]
    deviations: np.ndarray
    spreads: Spreads
    posterior: FieldPosterior | None

    def logits(self, rows: OffsetRows) -> np.ndarray:
        """η of rows (n,). Their last column may be missing."""
        logits = self.slope * rows.logits + self.bias
        for values, ids in zip(self.offsets, rows.ids, strict=True):
            logits += np.append(values, 0.0)[np.minimum(ids.astype(np.intp), len(values))]
        for column, values in zip(rows.columns, self.curves, strict=False):
            logits += column.at_rows(values)
        return logits

    def information(self, rows: OffsetRows) -> np.ndarray:
        """The variance of the label of each row (n,), times its weight."""
        probability = special.expit(self.logits(rows))
        return rows.row_weights * probability * (1 - probability)

    def mapped(self, line: Line) -> FieldOffsets:
        """The fit that predicts the logits of this fit, mapped by a line."""
        return replace(
            self,
            slope=line.scale * self.slope,
            bias=line.scale * self.bias + line.shift,
            offsets=[line.scale * values for values in self.offsets],
            curves=[line.scale * values for values in self.curves],
            deviations=line.scale * self.deviations,
            spreads=self.spreads._replace(deviations=line.scale * self.spreads.deviations),
            posterior=self.posterior and self.posterior.scaled(line.scale),
        )


@dataclass(frozen=True)
class FieldCurves(Solved):
    """The fit of `η = b(l) + Σ_f d_f[z_f](l)`, all piecewise linear on the same knots.

    Args:
        values: b at the knots (K,), increasing.
        deviations: d of each field at the knots (num_values, K).
        scales: s of each field (fields, 3): the standard deviations of levels, slopes and bends.
            Slopes and bends have 0 where the values differ by their levels alone.
    """

    values: np.ndarray
    deviations: list[np.ndarray]
    scales: np.ndarray


@one_thread
def fit_field_offsets(
    rows: OffsetRows,
    num_values: Sequence[int],
    log_prior: Callable[[np.ndarray], np.ndarray],
    fold_weights: Callable[[int], np.ndarray] | None = None,
    start: Spreads | None = None,
) -> FieldOffsets:
    """Fits slope, bias, an offset per field value `u_f ~ N(0, s_f²)`, and a curve per column.

    Newton steps on a, c and the offsets of one field at a time. Each row has one value of the
    field, so the Hessian is diagonal with a border of two rows, and the step is exact. In between,
    s_f is set to the mode of its marginal likelihood times its prior: the working responses
    `t_v = u_v - g_v / h_v` with precision h_v are distributed as `N(0, s_f² + 1 / h_v)` (penalised
    quasi-likelihood, a Laplace approximation). With several sparse fields, the s_f are then pooled
    and scaled (`improve_spreads`). When the s_f have settled, they are fixed, and the steps
    continue to the unique optimum.

    The curves of all numeric columns are a further block (`numeric_column`). All their straight
    lines share one s; the random walk of each column has its own. The likelihood of an s integrates
    out everything else in the block.

    A fit to a part of the rows gets the s of the fit to all rows as `start`. To save time, its s
    start there and settle less exactly, it uses the same factor, and it computes no posterior. It
    does not keep the s of all rows, as these would leak which columns matter in the held-out rows:
    on tables of 40 columns, the loss of held-out rows came out lower by 0.005. `fold_weights` makes
    the folds that `improve_spreads` needs if there are several fields.

    Reference:
        Breslow and Clayton (1993), *Approximate Inference in Generalized Linear Mixed Models*.
    """
    index, columns = FieldIndex.of(rows.ids, num_values), rows.columns
    line = CommonCurve(
        centre=np.array([1.0, 0.0]),
        ridge=np.array([SLOPE_PRECISION, 0.0]),
        lower=np.array([SMALLEST_SCALE, -np.inf]),
    )

    def new_fit(blocks: Sequence[RowBlock]) -> FieldEffects:
        # An offset is a coefficient of the second function, a constant.
        effects: list[Effect] = [TableEffect(len(ids), np.array([1])) for ids in index.seen_ids]
        effects += [CurvesEffect(columns)] if columns else []
        return FieldEffects(blocks, effects, log_prior, line)

    # Rows in parts that stay in the cache, each with its places in all fields and columns.
    functions, weights = np.stack([rows.logits, np.ones_like(rows.logits)]), rows.row_weights
    blocks = []
    for part in row_parts(len(weights), num_values):
        column_parts = [[column.part(part) for column in columns]] if columns else []
        places = [*(field_places[part] for field_places in index.places), *column_parts]
        blocks.append(RowBlock(functions[:, part], rows.labels[part], weights[part], places))
    fit = new_fit(blocks)
    run = fit.run
    # A fit to a part of the rows starts from the s of all rows, and ends sooner.
    if start is not None:
        fit.set_deviations(start.deviations)
        run = functools.partial(run, tolerance=_PART_TOLERANCE, scale_tolerance=_PART_SCALES)
    num_passes, converged = run()
    factor = improve_spreads(fit, new_fit, log_prior, fold_weights, start and start.factor)
    # `improve_spreads` moved the optimum, so the offsets are fitted again.
    if factor:
        num_further, converged = run(learn_scales=False)
        num_passes += num_further
    tables = [effect for effect in fit.effects if isinstance(effect, TableEffect)]
    curves = [effect for effect in fit.effects if isinstance(effect, CurvesEffect)]
    s_f = np.array([table.deviations[0] for table in tables])
    posterior = field_posterior(fit, factor > 0) if start is None else None
    if posterior:
        # A value without rows has nothing but its prior: its variance is that of all offsets.
        posterior = replace(
            posterior, variances=index.by_id(posterior.variances, posterior.spreads**2)
        )
    return FieldOffsets(
        slope=float(fit.beta[0]),
        bias=float(fit.beta[1]),
        offsets=index.by_id([table.coefficients[:-1, 0] for table in tables]),
        curves=[v for effect in curves for v in effect.on_knots(effect.coefficients[0])],
        deviations=np.concatenate([s_f, *(effect.deviations_of_columns() for effect in curves)]),
        spreads=Spreads(np.concatenate([s_f, *(effect.deviations for effect in curves)]), factor),
        posterior=posterior,
        log_loss=fit.loss / fit.total_weight,
        num_iterations=num_passes,
        converged=converged,
    )


@one_thread
def fit_field_curves(
    rows: Rows,
    knots: np.ndarray,
    ids: Sequence[np.ndarray],
    num_values: Sequence[int],
    log_prior: Callable[[np.ndarray], np.ndarray],
) -> FieldCurves:
    """Fits a piecewise-linear curve, and the deviation of each field value from it.

    In the basis `curve_basis(knots)` of a level, a slope and bends, the common curve has the
    coefficients β, and each field value its own `u ~ N(0, diag(s²))`, with one s each for the
    levels, slopes and bends of a field. The steps are like those of `fit_field_offsets`, with
    blocks of K × K on the diagonal.

    Each curve rises by at least a hundredth of the curve it deviates from: the common curve
    compared to its straight part, and the sum of the curves of a row compared to the common curve,
    where each field may use an equal part of the slope. If the common curve would rise less, its
    bends are shrunk more. If a deviation would fall more, it is drawn towards its level
    (`within_room`), and all levels are fitted again. If the result is then worse than with levels
    alone, the values differ by their levels alone.

    Reference:
        Breslow and Clayton (1993), *Approximate Inference in Generalized Linear Mixed Models*.
    """
    basis = curve_basis(knots)
    gaps = np.diff(knots)
    # Hat functions: a row between two knots has the share of its distance as weight of the right
    # one. Beyond the ends, the outer segment goes on straight.
    segment = np.clip(np.searchsorted(knots, rows.logits, side="right") - 1, 0, len(gaps) - 1)
    share = (rows.logits - knots[segment]) / gaps[segment]
    unit = knots.std()
    # The prior mean of β is the identity b(l) = l: `curve_basis` has the level and slope of the
    # knots as its first two functions.
    straight = np.r_[knots.mean(), unit, np.zeros(len(knots) - 2)]
    ridge = np.r_[0.0, SLOPE_PRECISION / unit**2, np.full(len(knots) - 2, _BEND_PRECISION)]
    lower = np.full(len(knots), -np.inf)
    # β of the slope is the slope times the standard deviation of the knots, and so is its bound.
    lower[1] = SMALLEST_SCALE * unit
    functions = (1 - share) * basis[segment].T + share * basis[segment + 1].T
    curve = CommonCurve(straight, ridge, lower, slopes=np.diff(basis, axis=0) / gaps[:, None])
    index = FieldIndex.of(ids, num_values)

    def fit_with(function_numbers: Sequence[int]) -> tuple[FieldCurves, bool]:
        tables = [TableEffect(len(ids), np.array(function_numbers)) for ids in index.seen_ids]
        block = RowBlock(functions, rows.labels, rows.row_weights, index.places)
        return _fit_curves(FieldEffects([block], tables, log_prior, curve), tables, basis)

    curves, is_drawn = fit_with(range(len(knots)))
    if is_drawn:
        # Drawing curves in may cost more than their shapes gained, as for a value with few rows of
        # large weight. Then levels alone are better.
        curves = min(curves, fit_with([0])[0], key=lambda fit: fit.log_loss)
    return replace(curves, deviations=index.by_id(curves.deviations))


def _fit_curves(
    fit: FieldEffects, tables: Sequence[TableEffect], basis: np.ndarray
) -> tuple[FieldCurves, bool]:
    """Curves of the values that have rows, and whether some were drawn towards their levels."""
    num_passes, converged = fit.run()
    values = basis @ fit.beta
    free = [table.coefficients @ basis[:, table.function_numbers].T for table in tables]
    # Project the curves so that the sum of any values' curves rises, and go back to coefficients:
    # the basis has mean squares of 1, so its inverse is its transpose divided by K.
    drawn = [within_room(curves, values, len(tables)) for curves in free]
    for table, curves in zip(tables, drawn, strict=True):
        table.coefficients = curves @ basis[:, table.function_numbers] / len(basis)
    deviations = np.stack([table.deviations for table in tables])
    # Levels, slopes and bends. Two knots have no bends, and a fit of levels alone has no slopes.
    scales = np.pad(deviations, ((0, 0), (0, 3 - deviations.shape[1])))
    # Drawn curves changed the loss. Only the levels are fitted again, which cannot break the order.
    levels = _fix_shapes(fit, tables)
    num_further, converged_again = levels.run(learn_scales=False)
    result = FieldCurves(
        values=values + (levels.beta[0] - fit.beta[0]),
        deviations=[
            (curves + (level.coefficients - table.coefficients[:, :1]))[:-1]
            for curves, table, level in zip(drawn, tables, levels.effects, strict=True)
        ],
        scales=scales,
        log_loss=levels.loss / levels.total_weight,
        num_iterations=num_passes + num_further,
        converged=converged and converged_again,
    )
    # Deviations that were within their room have changed by rounding alone.
    is_drawn = any(
        not np.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(free, drawn, strict=True)
    )
    return result, is_drawn


def _fix_shapes(fit: FieldEffects, tables: Sequence[TableEffect]) -> FieldEffects:
    """A fit of the levels alone (the first function, a constant), in which all else is fixed."""
    levels = [TableEffect(len(table.coefficients) - 1, np.zeros(1, int)) for table in tables]
    for level, table in zip(levels, tables, strict=True):
        level.coefficients = table.coefficients[:, :1]
        level.deviations = table.deviations[:1]
    blocks = []
    for block in fit.blocks:
        # Slope and bends become a fixed part of each row's curve; only the constant function is
        # left.
        fixed = fit.beta[1:] @ block.functions[1:]
        for table, places in zip(tables, block.places, strict=True):
            shapes = table.coefficients * (np.arange(len(table.group)) > 0)
            table.add_to(fixed, places, block.functions, shapes)
        blocks.append(replace(block, functions=block.functions[:1], fixed=fixed))
    constant = CommonCurve(fit.beta[:1], fit.ridge[:1], fit.lower[:1])
    return FieldEffects(blocks, levels, fit.log_prior, constant)


def curve_basis(knots: np.ndarray) -> np.ndarray:
    """Values at the knots (K, K) of a level, a slope and bends: orthonormal polynomials.

    The columns are 1, `(a - mean a) / std a`, and polynomials of degrees 2 … K - 1. The mean square
    of each is 1.
    """
    standardized = (knots - knots.mean()) / knots.std()
    powers = standardized[:, None] ** np.arange(len(knots))
    # QR is Gram-Schmidt on 1, a, a² …; the sign makes each polynomial rise to the right.
    orthogonal, triangle = np.linalg.qr(powers)
    return orthogonal * np.sign(np.diag(triangle)) * np.sqrt(len(knots))


def within_room(deviations: np.ndarray, values: np.ndarray, num_fields: int) -> np.ndarray:
    """Draws deviations towards their levels, so that b plus one deviation per field does not fall.

    Each field may use an equal part of 99 % of the slope of b. The mean of each deviation stays;
    those within their room are not changed.

    Example:
        >>> within_room(np.array([[0.0, 4.0], [4.0, 0.0]]), np.array([-1.0, 1.0]), 1)
        array([[0.  , 4.  ],
               [2.99, 1.01]])
    """
    room = (1 - SMALLEST_SHARE) * np.diff(values) / num_fields
    falls = np.maximum(-np.diff(deviations, axis=1), 0.0)
    # The share of each fall that fits into the room. Both are differences over the same gap between
    # knots, so that its length cancels.
    parts = np.divide(room, falls, out=np.ones_like(falls), where=falls > room)
    levels = deviations.mean(axis=1, keepdims=True)
    # One share for the whole curve, that of its steepest fall, keeps its shape.
    return levels + parts.min(axis=1, keepdims=True) * (deviations - levels)
