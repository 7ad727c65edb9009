"""The spreads of several sparse fields: pooled, and scaled by cross-validation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from keras_calibration._solvers.effects import TableEffect
from keras_calibration._solvers.field_effects import FieldEffects
from keras_calibration._solvers.logistic_fit import row_log_losses
from keras_calibration._solvers.row_blocks import RowBlock
from keras_calibration._solvers.standard_errors import mean_and_error

# Below this share of the rows, the effective offsets are too few for their spreads to matter.
_SPARSE_SHARE = 0.01
# Prior standard deviation of the logarithm of a field's spread about the logarithm of the common
# one.
_POOLING = 0.5
_GRID = np.geomspace(1e-3, 10.0, 65)
_FACTORS = np.sqrt(2.0) ** np.arange(5)
_NUM_FOLDS = 3
# Gain of a further pass, in nats per row, at which a fit to a part of the rows ends.
_TOLERANCE = 1e-6


def improve_spreads(
    fit: FieldEffects,
    new_fit: Callable[[Sequence[RowBlock]], FieldEffects],
    log_prior: Callable,
    fold_weights: Callable[[int], np.ndarray] | None,
    factor: float | None = None,
) -> float:
    """Improves the spreads of offsets, if they matter; returns their factor, or 0.

    A fit estimates the spread s_f of each field as if the offsets of all other fields were known.
    If most values have few rows, that has two faults. First, the offsets of other fields, fitted to
    the same rows, and their errors take over a part of each effect: s_f comes out too small, by a
    half with four fields of three rows a value. Second, s_f varies, down to 0, as few rows
    determine it. So, if the effective number of offsets, `Σ h / (h + 1 / s²)`, is more than a
    hundredth of the rows:

    - the s_f are set to the mode of their likelihoods times the prior `log s_f ~ N(log s, 0.5²)`;
      the common s is the mode of what remains after the s_f are summed out, times its own prior;
    - all are multiplied by √2, up to four times, as long as the log loss of held-out rows, in three
      folds, falls by more than a standard error.

    Args:
        fit: A finished fit of offsets of several fields. This function replaces its spreads; the
            caller fits its offsets again.
        new_fit: Creates a fit of other blocks of rows.
        log_prior: The log density of s, for an array of s in [1e-3, 10].
        fold_weights: From a number of folds to the weight of each row in each fold, (folds, n).
        factor: The factor, if an earlier fit has found it; 0 if spreads do not matter; None to find
            it.
    """
    tables = _list_tables(fit)
    if len(tables) < 2 or fold_weights is None or factor == 0:
        return 0.0
    likelihoods: list[Callable[[np.ndarray], np.ndarray]] = []
    num_effective = 0.0
    for number, table in enumerate(tables):
        gradient, precision, _ = fit.derivatives(number).sums
        likelihoods += table.scale_likelihoods(gradient, precision)
        # The trace of the smoother, `Σ h / (h + 1 / s²)`, counts each offset by how little it is
        # shrunk.
        num_effective += float(np.sum(precision / (precision + table.shrinkage)))
    if factor is None and num_effective <= _SPARSE_SHARE * fit.total_weight:
        return 0.0
    spreads = pooled_spreads(np.stack([likelihood(_GRID) for likelihood in likelihoods]), log_prior)
    if factor is not None:
        _set_spreads(fit, factor * spreads)
        return factor
    # Three-fold cross-validation of the factor: each part leaves the weight of one fold out.
    ends = np.cumsum([len(block.labels) for block in fit.blocks])[:-1]
    held_out, parts = fold_weights(_NUM_FOLDS), []
    for fold in held_out:
        pairs = zip(fit.blocks, np.split(fold, ends), strict=True)
        parts.append(new_fit([replace(block, weights=block.weights - out) for block, out in pairs]))
        parts[-1].set_deviations(fit.deviations())
    best_losses, best_factor = np.zeros(0), 1.0
    for trial_factor in _FACTORS:
        for part in parts:
            _set_spreads(part, trial_factor * spreads)
            part.run(learn_scales=False, tolerance=_TOLERANCE)
        blocks = [block for part in parts for block in part.blocks]
        # Every part has the losses of all rows; `held_out` gives those that it was fitted to no
        # weight.
        losses = np.concatenate([row_log_losses(block.labels, block.curve) for block in blocks])
        if trial_factor > 1:
            change, error = mean_and_error(losses - best_losses, held_out.reshape(-1))
            # The first factor that does not help ends the search; a gain within its standard error
            # may be chance.
            if change > -error:
                break
        best_losses, best_factor = losses, float(trial_factor)
    _set_spreads(fit, best_factor * spreads)
    return best_factor


def _list_tables(fit: FieldEffects) -> list[TableEffect]:
    """The effects that belong to fields."""
    return [effect for effect in fit.effects if isinstance(effect, TableEffect)]


def _set_spreads(fit: FieldEffects, spreads: np.ndarray) -> None:
    """Sets the spread of each field."""
    for table, spread in zip(_list_tables(fit), spreads, strict=True):
        table.deviations = np.array([spread])


def pooled_spreads(likelihoods: np.ndarray, log_prior: Callable) -> np.ndarray:
    """Spreads of the fields (fields,), from the log likelihoods on the grid (fields, 65).

    Example:
        >>> flat, peaked = np.zeros(65), -200 * np.log(_GRID / 0.5) ** 2
        >>> pooled_spreads(np.stack([flat, peaked]), lambda s: np.zeros_like(s)).round(1)
        array([0.5, 0.5])
    """
    log_ratios = np.log(_GRID)[:, None] - np.log(_GRID)
    # Empirical Bayes in two levels: the prior of s_f (columns) for each common s (rows).
    prior = -0.5 * (log_ratios / _POOLING) ** 2
    prior -= special.logsumexp(prior, axis=1, keepdims=True)
    # Sum over s_f, field by field; the mode of what is left is the common s, and given it, each
    # field takes its own mode.
    evidence = special.logsumexp(likelihoods[:, None] + prior, axis=2).sum(axis=0)
    common = int(np.argmax(evidence + log_prior(_GRID)))
    return _GRID[np.argmax(likelihoods + prior[common], axis=1)]


def half_cauchy(scale: float) -> Callable[[ArrayLike], np.ndarray]:
    """Log density of the half-Cauchy prior on a standard deviation.

    Example:
        >>> half_cauchy(1.0)([1.0]).round(4)  # log(1 / π)
        array([-1.1447])
    """
    constant = math.log(2 / (math.pi * scale))
    return lambda deviations: constant - np.log1p((np.asarray(deviations, "float64") / scale) ** 2)
