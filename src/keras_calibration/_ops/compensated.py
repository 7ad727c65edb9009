"""Compensated sums, which do not lose small terms."""

from __future__ import annotations

from keras import ops

from keras_calibration._typing import Tensor


def two_sum(total: Tensor, term: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded `total + term` and its rounding error, exactly (Knuth's two-sum).

    Where the sum is infinite or NaN, the error is 0.

    Reference:
        Knuth, *The Art of Computer Programming*, volume 2, section 4.2.2, theorem B.
    """
    rounded = total + term
    # `added` is what the rounded sum holds of `term`, `rounded - added` what it holds of `total`.
    # The two missing parts are exact, whichever operand is larger.
    added = rounded - total
    error = (total - (rounded - added)) + (term - added)
    # For an infinite sum, the lines above subtract infinities: NaN would spoil all later sums.
    return rounded, ops.where(ops.isfinite(rounded), error, 0.0)
