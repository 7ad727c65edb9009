"""Sums that do not lose small terms: Knuth's two-sum."""

from typing import Any


def two_sum(total: Any, term: Any) -> tuple[Any, Any]:
    """`total + term` as rounded, and what the rounding left out, exactly.

    Adding up the second results beside the first gives a sum of about twice the precision: float32
    pairs count past 2²⁴.

    Args:
        total: Running total, any shape.
        term: What is added, of the same shape and dtype.

    Returns:
        The rounded sum and its rounding error, each of that shape and dtype.

    Example:
        >>> import numpy as np
        >>> rounded, error = two_sum(np.float32(2**24), np.float32(1))
        >>> float(rounded), float(error)
        (16777216.0, 1.0)

    Reference:
        Knuth, *The Art of Computer Programming*, volume 2, section 4.2.2, theorem B.
    """
    rounded = total + term
    of_term = rounded - total
    error = (total - (rounded - of_term)) + (term - of_term)
    return rounded, error
