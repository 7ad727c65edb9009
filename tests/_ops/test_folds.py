"""The hash that shares out rows."""

import numpy as np
import pytest

from keras_calibration._ops import folds as kernels
from metric_references import hashed


@pytest.mark.parametrize("seed", [0, 1, 7, -3, 2**31, 2**40 + 5])
def test_hashed_uniform_equals_the_reference(run, seed):
    numbers = np.array([0, 1, 2, 1000, 2**31 - 1, -(2**31), -1], np.int32)
    received = run(lambda rows: kernels.hashed_uniform(rows, seed), numbers, num_of_any_size=1)
    assert received.dtype == "float32"
    np.testing.assert_array_equal(received, hashed(numbers, seed))
