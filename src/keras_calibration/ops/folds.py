"""Which fold a row belongs to, and what is fitted on which folds."""

from typing import Any

import numpy as np
from keras import ops


def hashed_uniform(row_number: Any, seed: int) -> Any:
    """A pseudo-random number in [0, 1) for each running row number.

    The rows of a data set may come in a periodic order (one row a user, say); a hash spreads them
    evenly whatever the order, depends on no batch size and is the same on every backend.

    Args:
        row_number: Running numbers (n,), int32; they may wrap around.
        seed: Whole number that selects one of 2³² assignments.

    Returns:
        Numbers (n,), float32, multiples of 2⁻²⁴.

    Example:
        >>> print(hashed_uniform(ops.arange(3), seed=0).numpy().round(3))
        [0.  0.318 0.191]

    Reference:
        The finaliser of MurmurHash3 (Appleby).
    """
    mixed = ops.cast(row_number, "uint32") ^ ops.cast(seed * 0x9E3779B9 % 2**32, "uint32")
    for shift, multiplier in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        mixed = ops.bitwise_xor(mixed, ops.right_shift(mixed, ops.cast(shift, "uint32")))
        mixed = mixed * ops.cast(multiplier, "uint32")
    # 24 bits are what a float32 holds exactly.
    return ops.cast(ops.right_shift(mixed, ops.cast(8, "uint32")), "float32") * 2.0**-24


def row_groups(row_number: Any, num_folds: int, bias_fraction: float | None, seed: int) -> Any:
    """The fold of each row; or, held out, 0 for a row to fit on and 1 for a row to score.

    Args:
        row_number: Running numbers (n,), int32.
        num_folds: Number of folds.
        bias_fraction: Share of the rows to fit on, in (0, 1); None for folds.
        seed: As for `hashed_uniform`.

    Returns:
        Groups (n,), int32.

    Example:
        >>> print(row_groups(ops.arange(3), num_folds=4, bias_fraction=None, seed=0).numpy())
        [0 1 0]
    """
    uniform = hashed_uniform(row_number, seed)
    if bias_fraction is None:
        return ops.cast(uniform * num_folds, "int32")
    return ops.cast(uniform >= bias_fraction, "int32")


def fitting_sums(sums: Any, held_out: bool) -> Any:
    """Sums over the rows that each correction is fitted on.

    Args:
        sums: Sums over the rows of each group (groups, …).
        held_out: Whether the first group is the one to fit on, and the second the one to score;
            otherwise every group is a fold, scored with what is fitted on the others (on itself
            where there is only one).

    Returns:
        Sums (corrections, …).

    Example:
        >>> print(fitting_sums(ops.array([1.0, 2.0, 4.0]), held_out=False).numpy())
        [6. 5. 3.]
    """
    if held_out:
        return sums[:1]
    num_folds = sums.shape[0]
    if num_folds <= 2:
        return ops.flip(sums, axis=0)
    # Not the total less the own fold: beside a heavy fold, a light one would lose its digits.
    others = ops.cast(1 - np.eye(num_folds), sums.dtype)
    return ops.tensordot(others, sums, axes=1)


def scored_sums(sums: Any, held_out: bool) -> Any:
    """Sums over the rows that each correction is scored on.

    Args:
        sums: Sums over the rows of each group (groups, …).
        held_out: As for `fitting_sums`.

    Returns:
        Sums (corrections, …).

    Example:
        >>> print(scored_sums(ops.array([1.0, 2.0]), held_out=True).numpy())
        [2.]
    """
    return sums[1:] if held_out else sums
