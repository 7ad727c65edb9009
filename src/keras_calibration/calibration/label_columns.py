"""Warns of columns that are the label, or known only with it."""

from __future__ import annotations

import numpy as np

from calibration_records._warn import warn
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.segments import distinct_values
from keras_calibration.layers.cross_fitting import enough_for
from keras_calibration.layers.head_logits import head_log_losses

# What a column alone may leave of the entropy of the labels, and of the log loss of the model.
_OF_ENTROPY, _OF_LOSS = 0.05, 0.25
# Numbers are binned at quantiles of each class, with so many rows in a bin, in up to so many bins.
_ROWS_OF_A_BIN, _MOST_BINS = 20, 32


def warn_of_label_columns(rows: Rows, fold: np.ndarray) -> None:
    """Warns if a column alone predicts the label almost without error, and the model does not.

    The rate of each value is that of the other folds, so that ids of single rows tell nothing. A
    strong feature that the model knows is no such column, since the model then predicts as well.
    """
    if not rows.features or not enough_for(1, rows):
        return
    shares, weights = rows.shares, rows.row_weights / rows.row_weights.mean()
    mean = weights @ shares / weights.sum()
    entropy = -np.sum(mean * np.log(np.maximum(mean, 1e-300)))
    loss_of_model = float(np.average(head_log_losses(rows.labels, rows.logits), weights=weights))
    if rows.logits.ndim == 1:
        # In whatever unit the score is.
        loss_of_model = min(loss_of_model, _loss_of_column(rows.logits, shares, weights, fold))
    if loss_of_model <= _OF_ENTROPY * entropy:
        return
    for name, values in rows.features.items():
        if values.size != len(fold):
            continue
        loss = _loss_of_column(values.reshape(-1), shares, weights, fold)
        if loss <= min(_OF_ENTROPY * entropy, _OF_LOSS * loss_of_model):
            warn(
                f"The column {name!r} alone predicts the labels almost without error: its cross-"
                f"fitted log loss is {loss:.2g}, that of the model {loss_of_model:.2g}. It may be "
                "the label, or be known only after it. If so, the report is too good, and requests "
                "will not have this column: leave it out of `fields` and `numeric`."
            )


def _loss_of_column(values: np.ndarray, shares: np.ndarray, *others: np.ndarray) -> float:
    """The cross-fitted loss of a column alone, by its values or, of numbers, by their bins."""
    is_number = values.dtype.kind in "iufb"
    ids = values if is_number else distinct_values(values)[1]
    distinct, group = np.unique(ids, return_inverse=True)
    loss = _cross_fitted_loss(group.reshape(-1), shares, *others)
    if is_number and len(distinct) > shares.shape[1]:
        loss = min(loss, _cross_fitted_loss(_bins(values, shares), shares, *others))
    return loss


def _bins(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The number of each value's bin (n,), between quantiles of the classes; NaN has its own."""
    values = values.astype(np.float64)
    known = np.isfinite(values)
    edges = [np.zeros(0)]
    for share in shares.T:
        part = values[known & (share > 0.5)]
        if len(part):
            num_bins = min(_MOST_BINS, 1 + len(part) // _ROWS_OF_A_BIN)
            edges.append(np.quantile(part, np.arange(1, num_bins + 1) / num_bins))
    # NaN comes last of all.
    return np.searchsorted(np.unique(np.concatenate(edges)), values)


def _cross_fitted_loss(
    group: np.ndarray, shares: np.ndarray, weights: np.ndarray, fold: np.ndarray
) -> float:
    """Log loss of the rate of each group in the other folds, drawn to the mean by half a row."""
    weighted = weights[:, None] * shares
    num_groups = int(group.max()) + 1

    def sums_of(rows: np.ndarray) -> np.ndarray:
        columns = [np.bincount(group[rows], column[rows], num_groups) for column in weighted.T]
        return np.stack(columns, axis=1)

    whole = sums_of(np.ones(len(fold), bool))
    total = 0.0
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        sums = whole - sums_of(inside)
        mean = sums.sum(axis=0) / max(sums.sum(), 1e-300)
        rates = (sums + mean / 2) / (sums.sum(axis=1, keepdims=True) + 0.5)
        total -= np.sum(weighted[inside] * np.log(np.maximum(rates[group[inside]], 1e-300)))
    return float(total / weights.sum())
