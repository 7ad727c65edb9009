"""The checks of arguments: what they refuse, what they let pass, and what they say."""

import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from calibration_records import _check

NAN, INF = float("nan"), float("inf")
NO_NUMBERS = ["0.5", None, [0.5], {}, 1j, np.array([0.5, 0.5])]

# Check → its further arguments, values that pass, values that do not (besides NO_NUMBERS).
NUMBERS = {
    "integer": ((2,), [2, 10**30, np.int64(2), np.uint8(200)], [1, True, 2.0, NAN, np.float64(3)]),
    "at_least": ((1,), [1, 1.5, INF, np.float32(1), Fraction(3, 2)], [0, -1, 0.999, NAN, -INF]),
    "positive": ((), [1e-300, 5e-324, 1, np.float32(2), Decimal("0.1")], [0, -0.0, -1, NAN, INF]),
    "not_negative": ((), [0, -0.0, 1e300, np.int8(3)], [-5e-324, -1, NAN, INF, -INF]),
    "share": ((), [0.5, np.float32(0.1), 5e-324, Fraction(1, 3)], [0, 1, -0.1, 1.1, NAN, INF]),
    "confidence_level": ((), [0.95, 1e-9, np.float64(0.5)], [0, 1, 95, NAN, 1 - 2**-53]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    further, right, wrong = NUMBERS[name]
    check = getattr(_check, name)
    for value in right:
        check("width", value, *further)
    for value in [*wrong, *NO_NUMBERS]:
        with pytest.raises(ValueError, match="Argument `width` must be ") as told:
            check("width", value, *further)
        assert f". Received: width={value!r}." in str(told.value)


def test_an_integer_is_a_plain_one():
    assert type(_check.integer("number", np.int32(7), 1)) is int


@pytest.mark.parametrize("ends", ["", "0", "1", "01"])
def test_ends_of_a_share(ends):
    for end in (0, 1):
        if str(end) in ends:
            _check.share("rate", end, ends=ends)
        else:
            with pytest.raises(ValueError, match=f"`rate` must .* rate={end}"):
                _check.share("rate", end, ends=ends)


def test_names():
    for value in ("a", 1, None):
        _check.one_of("kind", value, ("a", 1, None))
    for value in ("A", "", 2, ["a"], NAN):
        with pytest.raises(ValueError, match="`kind`"):
            _check.one_of("kind", value, ["a", 1])
    with pytest.raises(ValueError, match=r"kind='strct'\. Did you mean 'strict'\?$"):
        _check.one_of("kind", "strct", ("penalty", "strict"))
    _check.known("Arguments must name columns", ["a", 1], {"a": 0, 1: 0})
    message = "Received: 'prise', 3. Did you mean 'Price'? Available: 'Price', 'site'. Look."
    with pytest.raises(ValueError, match=re.escape(message)):
        _check.known("Arguments", ["site", "prise", 3], ["Price", "site"], "Look.")
    with pytest.raises(ValueError, match=r"Received: no 'site'\. Available: none\.$"):
        _check.known("Arguments", ["site"], {}, missing=True)


def test_of_many_names_the_first_twenty_are_listed():
    names = [f"column_{number}" for number in range(33)]
    with pytest.raises(ValueError, match=r"'column_18', 'column_19', … and 13 more\.$") as told:
        _check.known("Arguments", ["carrier"], names)
    assert "Did you mean" not in str(told.value)
    assert "column_20" not in str(told.value)
    with pytest.raises(ValueError, match=r"'column_19'\.$"):
        _check.known("Arguments", ["carrier"], names[:20])


def test_shapes():
    for shape in ((3,), (3, 1), (None,), (None, 1), (None, None), (0,)):
        _check.one_column("field", shape)
    for shape in ((), (3, 2), (3, 0), (3, 1, 1), (None, 2)):
        with pytest.raises(ValueError, match="field"):
            _check.one_column("field", shape)
    for numbers in ((3, 3), (None, 3), (3, None), (0, 0)):
        _check.same_rows("field", *numbers, "prediction")
    with pytest.raises(ValueError, match="field"):
        _check.same_rows("field", 0, 3, "prediction")


def test_a_missing_package():
    with pytest.raises(ImportError, match=r"keras-calibration\[html\]"):
        with _check.installed("html", "Pages need it."):
            import no_such_package  # noqa: F401
    with pytest.raises(KeyError), _check.installed("html", "Pages need it."):
        raise KeyError
