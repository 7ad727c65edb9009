"""What the tests of this folder read: every number of a text, and none may be left over."""

import numpy as np
import pytest

from printed import check_numbers, numbers_of, unit_of

TEXT = (
    "F-ECE 1,234 rows: -0.73 [-1.01, -0.45] e-3 (61%, 80 %, +2e+02, 0.5–0.6 of 2026-03-01, 3), all "
    "in [-8, 9.5] e-4, -3.06±0.12 e-3, 0.2 ± 0.10, within ±0.5."
)
NUMBERS = [1234, -73e-5, -101e-5, -45e-5, 0.61, 0.8, 200, 0.5, 0.6, 20260301, 3]
NUMBERS += [-8e-4, 95e-5, -306e-5, 12e-5, 0.2, 0.1, 0.5]


@pytest.mark.parametrize("error", ["0.00000", "0.0003", "3"])
def test_an_error_of_fewer_than_two_digits_is_found(error):
    with pytest.raises(AssertionError, match="±"):
        check_numbers(f"0.00259 ± {error}", [0.00259, float(error)])


def test_every_number_is_read():
    assert np.allclose([unit_of(number)[0] for number in numbers_of(TEXT)], NUMBERS, rtol=1e-12)
    check_numbers(TEXT, [NUMBERS[:4], np.array(NUMBERS[4:8]), (0.7, 0.06), NUMBERS[9:]])


@pytest.mark.parametrize("place", range(len(NUMBERS)))
def test_a_number_that_is_wrong_missing_or_too_many_is_found(place):
    # A little more than half a unit of the last digit.
    halves = [0.55 * unit_of(number)[1] for number in numbers_of(TEXT)]
    wrong = [
        x + half * (n == place) for n, (x, half) in enumerate(zip(NUMBERS, halves, strict=True))
    ]
    others = NUMBERS[:place] + NUMBERS[place + 1 :]
    for expected in (wrong, others, [*NUMBERS, 3]):
        with pytest.raises(AssertionError, match="expected"):
            check_numbers(TEXT, expected)
