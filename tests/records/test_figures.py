"""Figures as text, compared with decimal arithmetic."""

import decimal
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration_records._figures import decimals_of, significant, to_error, with_error

SIZES = st.floats(1e-12, 1e12)
FIGURES = st.one_of(SIZES, SIZES.map(lambda size: -size), st.just(0.0))


def value_of(text):
    return float(text.replace(",", ""))


def digits_of(text):
    """The significant digits of a printed number, without the zeros before them."""
    mantissa = re.sub(r"[^\d.]", "", text.partition("e")[0])
    return len(mantissa.replace(".", "").lstrip("0"))


def rounded(size, digits):
    """A number rounded to so many digits, by decimal arithmetic."""
    return float(decimal.Context(prec=digits).create_decimal_from_float(size))


@given(SIZES, st.integers(1, 5))
def test_significant_digits(size, digits):
    text = significant(size, digits)
    if size >= 10**digits:  # an ordinary size keeps its digits before the point
        assert math.isclose(value_of(text), size, rel_tol=0.5 * 10.0 ** (1 - digits))
    else:
        assert math.isclose(value_of(text), rounded(size, digits), rel_tol=1e-12)
        assert digits_of(text) == digits
    assert ("e" in text) == (not 1e-7 <= rounded(size, digits) < 1e6)


@given(FIGURES, SIZES)
def test_an_error_has_two_digits_and_its_figure_as_many_decimals(value, error):
    figure, printed = with_error(value, error).split(" ± ")
    assert math.isclose(value_of(printed), error, rel_tol=0.05)
    assert digits_of(printed) >= 2
    if 1e-7 <= rounded(error, 2) < 1e6 and abs(value) < 1e6 * error:
        # One unit of the last digit is at most a tenth of the error.
        decimals = [len(text.partition(".")[2]) for text in (figure, printed)]
        assert decimals[0] == decimals[1] == decimals_of(error)
        assert digits_of(printed) == 2 or error >= 100
        assert abs(value_of(figure) - value) <= 0.5001 * 10.0 ** -decimals[0]


@pytest.mark.parametrize("value", [0.0, -0.0, 0.37, -1e-9])
@pytest.mark.parametrize("error", [0.0, math.nan, math.inf, 1e-300])
def test_without_an_error_that_says_how_many_digits_count(value, error):
    assert math.isclose(value_of(to_error(value, error)), value, rel_tol=1e-5)
    assert not to_error(value, error).startswith("-0.0")


def test_no_minus_stands_before_0():
    for value in (0.0, -0.0, -1e-5, 1e-5):
        assert to_error(value, 0.01) in ("0.000", "0")
        assert to_error(value, 0.01, "+") in ("+0.000", "0")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_printed(value):
    for text in (significant(value, 3), to_error(value, 0.1)):
        assert text == str(value)
