import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_calibration._solvers.ilps_fit import strictly_increasing


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12))
def test_strictly_increasing_moves_values_up_by_as_little_as_possible(values):
    values = np.sort(np.float32(values))
    increasing = strictly_increasing(values)
    assert increasing.dtype == np.float32
    assert (np.diff(increasing) > 0).all()
    # Each is either the value itself, or the next number above the one before.
    above = np.nextafter(np.r_[np.float32(-np.inf), increasing[:-1]], np.float32(np.inf))
    assert ((increasing == values) | (increasing == above)).all()
    assert (increasing >= values).all()
