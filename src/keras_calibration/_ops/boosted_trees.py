"""Sums of small regression trees, for all rows and all trees at once."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor

# Splits of a tree with eight leaves. The side of a row at each split is a bit of its code.
NUM_SPLITS = 7
NUM_CODES = 1 << NUM_SPLITS
LARGEST = 3.4028234663852886e38  # of float32
# Rounds are summed in this many groups first: one long sum would round too often.
NUM_GROUPS = 16


def tree_sums(columns: Tensor, splits: Tensor, thresholds: Tensor, leaves: Tensor) -> Tensor:
    """The sum of the trees at each row, `Σ_t v_t[code_t(x)]`.

    Each tree has seven splits. Bit k of the code of a row is 1 where `s x_j > τ` for the column j,
    the sign s and the threshold τ of split k, wherever this split is in the tree. A table holds the
    value of the leaf of each of the 128 codes. A comparison with NaN is false, so that the sign
    decides to which side a missing value goes. If a split separates numbers from missing values,
    `x_j = x_j` replaces `s x_j`. A row takes one comparison per split and one lookup per tree,
    without branches.

    Args:
        columns: x (n, C), float32.
        splits: j of each split, j + C where s is -1, j + 2C for `x_j = x_j`, (7, T), int32.
        thresholds: τ of each split (7, T), float32.
        leaves: v of each code (T, 128), float32; T is a multiple of 16.

    Returns:
        A tensor (n, 1).

    Example:
        >>> import numpy as np
        >>> splits, thresholds = np.zeros((7, 16), "int32"), np.full((7, 16), np.inf, "float32")
        >>> leaves = np.zeros((16, 128), "float32")
        >>> thresholds[0, 0], leaves[0, 1] = 0.5, 2.0  # one tree: 2 where x > 0.5
        >>> columns = np.array([[0.5], [0.6], [np.nan]], "float32")
        >>> print(ops.convert_to_numpy(tree_sums(columns, splits, thresholds, leaves))[:, 0])
        [0. 2. 0.]

    Reference:
        Lucchese et al., *QuickScorer*, SIGIR 2015, for trees as bits of their splits.
    """
    num_trees = leaves.shape[0]
    splits, thresholds = map(ops.convert_to_tensor, (splits, thresholds))
    # With a row per column, a gather copies whole rows.
    rows = ops.transpose(columns)
    signed = ops.concatenate([rows, -rows, ops.cast(ops.equal(rows, rows), rows.dtype)])
    # Each tree starts at its own 128 leaves in the flat table, and each split that the row passes
    # sets a bit of the code: the code is the place of the leaf, without a walk down the tree.
    codes = ops.arange(num_trees, dtype="int32")[:, None] * NUM_CODES
    for number in range(NUM_SPLITS):
        beyond = ops.take(signed, splits[number], axis=0) > thresholds[number][:, None]
        codes = codes + ops.cast(beyond, "int32") * (1 << number)
    values = ops.take(ops.reshape(leaves, (-1,)), codes)
    groups = ops.reshape(values, (NUM_GROUPS, num_trees // NUM_GROUPS, -1))
    return ops.sum(ops.sum(groups, axis=1), axis=0)[:, None]
