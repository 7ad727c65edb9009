"""The hash that shares out rows."""

import numpy as np
import pytest

from keras_calibration._ops import folds as kernels


def reference_hash(row_number, seed):
    """MurmurHash3's finaliser, in Python's own integers."""
    mixed = (row_number % 2**32) ^ (seed * 0x9E3779B9 % 2**32)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % 2**32
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % 2**32
    return ((mixed ^ mixed >> 16) >> 8) / 2**24


@pytest.mark.parametrize("seed", [0, 1, 7, -3, 2**31, 2**40 + 5])
def test_hashed_uniform_equals_the_reference(run, seed):
    numbers = np.array([0, 1, 2, 1000, 2**31 - 1, -(2**31), -1], np.int32)
    received = run(lambda rows: kernels.hashed_uniform(rows, seed), numbers, num_of_any_size=1)
    assert received.dtype == "float32"
    expected = [reference_hash(number, seed) for number in numbers.tolist()]
    np.testing.assert_array_equal(received, expected)
