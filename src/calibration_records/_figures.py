"""Figures as text: to significant digits, and to the digits that their error leaves."""

import math

# Of a figure with more digits than this, the last ones are rounding.
_MOST_DIGITS = 9
# Exponents that are written as zeros, from 0.0000001 to a million.
_LEAST_EXPONENT, _MOST_EXPONENT = -7, 5


def decimals_of(size: float, digits: int = 2) -> int:
    """The number of decimals that show so many significant digits of a size; 0 of 0.

    Example:
        >>> decimals_of(0.0123), decimals_of(48.0), decimals_of(0.0996)
        (3, 0, 2)
    """
    return max(0, digits - 1 - _find_exponent(size, digits))


def significant(value: float, digits: int) -> str:
    """A figure to so many significant digits; with an exponent only if it is tiny or huge.

    Example:
        >>> significant(483.2, 2), significant(0.00259, 4), significant(1e-9, 2)
        ('483', '0.002590', '1.0e-09')
    """
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return f"{value:g}"
    if _LEAST_EXPONENT <= _find_exponent(value, digits) <= _MOST_EXPONENT:
        return f"{value:,.{decimals_of(value, digits)}f}"
    return f"{value:.{digits - 1}e}"


def to_error(value: float, error: float, sign: str = "") -> str:
    """A figure to the second significant digit of its error.

    Example:
        >>> to_error(0.372612, 0.0021), to_error(0.5, 0.0), to_error(-0.00001, 0.01, "+")
        ('0.3726', '0.5', '+0.000')
    """
    exponent = _find_exponent(error, 2)
    num_digits = _find_exponent(value, 2) - exponent + 2
    is_known = math.isfinite(value) and math.isfinite(error) and error > 0
    # No error, or one that is itself rounding: nothing says which digits count.
    if not is_known or num_digits > _MOST_DIGITS:
        return f"{value:{sign}.6g}" if value else "0"
    if _LEAST_EXPONENT <= exponent <= _MOST_EXPONENT:
        return f"{value:{sign}z,.{decimals_of(error)}f}"
    return f"{value:{sign}.{max(num_digits, 1) - 1}e}"


def with_error(value: float, error: float, sign: str = "") -> str:
    """A figure and its standard error, both to the second significant digit of the error.

    Example:
        >>> with_error(0.0025912, 0.0000031), with_error(-0.00273, 0.0035, "+")
        ('0.0025912 ± 0.0000031', '-0.0027 ± 0.0035')
    """
    return f"{to_error(value, error, sign)} ± {to_error(error, error)}"


def _find_exponent(size: float, digits: int) -> int:
    """The exponent of ten of a size, rounded to so many digits."""
    # Rounding comes first: 0.0996 is 0.10 to two digits.
    if size == 0 or not math.isfinite(size):
        return 0
    return int(f"{size:.{digits - 1}e}".partition("e")[2])
