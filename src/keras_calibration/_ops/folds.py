"""The fold of each row, and the sums over the rows to fit on and to score."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_calibration._typing import Tensor


def hashed_uniform(row_number: Tensor, seed: int) -> Tensor:
    """A pseudo-random float32 in [0, 1) for each row number (n,), the same on every backend.

    Rows may come in a periodic order, for example one for each user. A hash of the row number
    spreads them evenly, and does not depend on the batch size. Row numbers may wrap around.

    Example:
        >>> print(hashed_uniform(ops.arange(3), seed=0).numpy().round(3))
        [0.  0.318 0.191]

    Reference:
        The finaliser of MurmurHash3 (Appleby).
    """
    # 2³² over the golden ratio spreads the bits of small seeds, so that their hashes are unrelated.
    mixed = ops.cast(row_number, "uint32") ^ ops.cast(seed * 0x9E3779B9 % 2**32, "uint32")
    # MurmurHash3's fmix32. Products with odd numbers carry each bit upwards, shifts carry it
    # downwards: in the end, a bit of the row number changes each bit in about half of the cases.
    for shift, multiplier in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = ops.bitwise_xor(mixed, ops.right_shift(mixed, ops.cast(shift, "uint32")))
        mixed = mixed * ops.cast(multiplier, "uint32")
    # A float32 holds 24 bits exactly.
    return ops.cast(ops.right_shift(mixed, ops.cast(8, "uint32")), "float32") * 2.0**-24


def row_groups(
    row_number: Tensor, num_folds: int, bias_fraction: float | None, seed: int
) -> Tensor:
    """The fold of each row, int32; with `bias_fraction`, 0 (to fit on) or 1 (to score)."""
    uniform = hashed_uniform(row_number, seed)
    if bias_fraction is None:
        # The cast rounds down. The product is below `num_folds`, because the largest u is 1 - 2⁻²⁴.
        return ops.cast(uniform * num_folds, "int32")
    return ops.cast(uniform >= bias_fraction, "int32")


def num_groups_of(num_folds: int, bias_fraction: float | None) -> int:
    """The number of groups of `row_groups`."""
    return num_folds if bias_fraction is None else 2


def fitting_sums(sums: Tensor, held_out: bool) -> Tensor:
    """From sums by group (groups, …), the sums over the rows on which each correction is fitted.

    With `held_out`, it is the first group. Otherwise the groups are folds, and each correction is
    fitted on all the other folds (on the same fold if there is only one).
    """
    if held_out:
        return sums[:1]
    num_folds = sums.shape[0]
    if num_folds <= 2:
        # Of two folds, each gets the sums of the other; a single fold gets its own.
        return ops.flip(sums, axis=0)
    # Not the total minus the fold: next to a heavy fold, a light one would lose its digits.
    # Not by a matrix product, which may round to fewer digits on a GPU.
    others = np.reshape(1 - np.eye(num_folds), (num_folds, num_folds, *[1] * (sums.ndim - 1)))
    return ops.sum(ops.cast(others, sums.dtype) * sums, axis=1)


def scored_sums(sums: Tensor, held_out: bool) -> Tensor:
    """From sums by group (groups, …), the sums over the rows on which each correction is scored."""
    return sums[1:] if held_out else sums
