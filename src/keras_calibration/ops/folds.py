"""Which fold a row belongs to: a hash of its running number."""

from typing import Any

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
