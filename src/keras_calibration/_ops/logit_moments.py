"""Moments of labelled logits by bin, on tensors: see `calibration_records._logit_moments`.

A summary is a tensor (groups, 418, 8). Summaries add up over batches, replicas and shards. XLA adds
eight columns, a power of two, faster than seven.

On a CPU, most of the time is spent on compilation, about 30 ms for each array that XLA creates,
however small. Therefore sums over terms are computed together, and loops carry a single array.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from calibration_records import _logit_moments as moments
from calibration_records._logit_bins import MOMENT_BINS
from calibration_records._logit_moments import (
    LARGEST_BIAS,
    LARGEST_NUM_STEPS,
    NUM_BINS,
    NUM_COLUMNS,
    TOLERANCE,
    BiasSearch,
    row_columns,
)
from keras_calibration._ops.compiled import runs_on_gpu
from keras_calibration._ops.logit_bins import bin_numbers, bin_offsets
from keras_calibration._ops.sums_by_cell import sums_by_cell
from keras_calibration._typing import Tensor

# On a GPU, a loop that may end waits for the host at every step. Instead, two grids of biases find
# the root to within 0.03. From there, three Newton steps suffice: each squares the error and halves
# it.
_GRID, _NUM_GRIDS, _NUM_STEPS_ON_GPU = np.arange(1, 128) / 128, 2, 3


def logit_moments(
    labels: Tensor, logits: Tensor, weights: Tensor, group: Tensor, num_groups: int
) -> Tensor:
    """The summary of the rows of each group, in one pass, shape (num_groups · 418, 8).

    Labels are in [0, 1] and weights non-negative, of one dtype, which the sums have too. A logit
    that is not finite makes everything computed from its group NaN. `by_group` reshapes to
    (num_groups, 418, 8); in this shape XLA adds rows directly to a running sum.
    """
    labels, logits, weights = map(ops.convert_to_tensor, (labels, logits, weights))
    bin_number = bin_numbers(MOMENT_BINS, logits)
    u = ops.cast(bin_offsets(MOMENT_BINS, logits), weights.dtype)
    cell = ops.convert_to_tensor(group, "int32") * NUM_BINS + bin_number
    columns = row_columns(weights, labels, u, ops.clip(u, -1.0, 1.0))
    return sums_by_cell(columns, cell, num_groups * NUM_BINS)


def by_group(sums: Tensor) -> Tensor:
    """Summaries (groups, 418, 8), from sums of the shape that `logit_moments` returns."""
    return ops.reshape(sums, (-1, NUM_BINS, NUM_COLUMNS))


def log_loss_and_weight(summary: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`Σ w` log loss of `σ(l + c)` of each summary at its bias, or NaN, and `Σ w`."""
    summary, bias = map(ops.convert_to_tensor, (summary, bias))
    return moments.log_loss_and_weight(ops, _sum_parts, moments.terms(ops, summary), bias)


def _sum_parts(parts: list[Tensor]) -> list[Tensor]:
    """Sums over the terms, each (g,), computed together."""
    return list(ops.unstack(_sum_terms(ops.stack(parts)), len(parts)))


def _sum_terms(values: Tensor) -> Tensor:
    """Sums over the last axis: on a CPU by a matrix product, which needs no compilation."""
    if runs_on_gpu():  # matrix products of float32 are less precise there
        return ops.sum(values, axis=-1)
    return ops.matmul(values, ops.cast(_ONES, values.dtype))[..., 0]


def bias_root(summary: Tensor) -> Tensor:
    """The bias c of each summary at which predictions sum to labels: `Σ w σ(l + c) = Σ w y`.

    NaN if there are no rows, if all labels are 0 or all are 1 (no finite bias exists), if the bias
    would move logits from beyond ±88 close to 0, or if the rows do not determine it, because all
    predictions are 0 or 1 to the last bit. The method is that of `BiasSearch`.
    """
    summary = ops.convert_to_tensor(summary)
    weights = moments.terms(ops, summary)
    dtype = keras.backend.standardize_dtype(summary.dtype)

    def improve(state: Tensor) -> tuple[Tensor]:
        return (ops.stack(_unpack_search(state).improved(ops, _sum_parts, weights, dtype), axis=0),)

    state = _start_search(summary)
    if runs_on_gpu():
        for _ in range(_NUM_GRIDS):
            state = _bracket_on_grid(state, weights, dtype)
        for _ in range(_NUM_STEPS_ON_GPU):
            (state,) = improve(state)
    else:
        (state,) = ops.while_loop(
            # A NaN compares as False: a group without a root neither continues nor stops others.
            lambda state: ops.any(_unpack_search(state).moved > TOLERANCE),
            improve,
            (state,),
            maximum_iterations=LARGEST_NUM_STEPS,
        )
    return _unpack_search(state).result(ops)


def _bracket_on_grid(state: Tensor, weights: tuple[Tensor, Tensor], dtype: str) -> Tensor:
    """The state with a bracket of two intervals of the grid, with the root near its middle.

    A single interval would be too narrow: near its ends, Newton's steps would leave it.
    """
    search = _unpack_search(state)
    size = len(_GRID)
    # Try 127 biases in each bracket at once: they divide it into 128 intervals.
    low = search.low[:, None]
    high = search.high[:, None]
    biases = ops.reshape(low + (high - low) * ops.cast(_GRID, dtype), (-1,))
    at_biases = _unpack_search(ops.repeat(state, size, axis=1))._replace(bias=biases)
    of_0, of_1 = (ops.repeat(terms, size, axis=0) for terms in weights)
    improved = at_biases.improved(ops, _sum_parts, (of_0, of_1), dtype)
    # The sum of predictions rises with the bias, so the root is between the greatest bias at which
    # it is too small and the smallest at which it is too large.
    low = ops.max(ops.reshape(improved.low, (-1, size)), axis=1)
    high = ops.min(ops.reshape(improved.high, (-1, size)), axis=1)
    bias = 0.5 * (low + high)
    width = high - low
    return ops.stack(search._replace(bias=bias, low=bias - width, high=bias + width), axis=0)


def _unpack_search(state: Tensor) -> BiasSearch:
    return BiasSearch(*ops.unstack(state, len(BiasSearch._fields)))


# A column of ones, and one of zeros that keeps it a matrix.
_ONES = np.tile([1.0, 0.0], (NUM_BINS * NUM_COLUMNS, 1))

# The start of a `BiasSearch`, without its sums, which are products of the summary with _SUMS.
_START = np.array([0, -1, 1, 1, 0, 0, 0, 0, 0])[:, None] * LARGEST_BIAS
_SUMS = np.zeros((len(_START), NUM_BINS, NUM_COLUMNS))
# The last four fields: Σ w (1 - y) and Σ w y of all bins, and Σ w of the first and the last bin.
_SUMS[5, :, 0] = _SUMS[6, :, 1] = _SUMS[7, 0, :2] = _SUMS[8, -1, :2] = 1
_SUMS = _SUMS.reshape(len(_START), 1, -1)


def _start_search(summary: Tensor) -> Tensor:
    """The initial state of the search for the bias, (9, g); NaN where there is no root."""
    summary = ops.reshape(summary, (1, -1, NUM_BINS * NUM_COLUMNS))
    # A sum that is not finite comes from an invalid row. The product with 0 makes all sums NaN.
    totals = _sum_terms(summary * ops.cast(_SUMS, summary.dtype))
    solvable = ops.logical_and(totals[5] > 0, totals[6] > 0)
    return ops.where(solvable, totals + ops.cast(_START, totals.dtype), float("nan"))
