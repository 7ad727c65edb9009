import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_calibration.ops.rolling import earlier_period


def expected_of(weights):
    earlier = [[p for p in range(k) if weights[p] > 0] for k in range(len(weights))]
    return [max(each, default=-1) for each in earlier]


@pytest.mark.parametrize(
    "weights", [[0, 2, 0, 0, 1, 3], [1.0], [0, 0], [1, 1, 1], [5, 0, 0, 0]], ids=str
)
def test_the_nearest_earlier_period_with_rows(weights):
    received = np.asarray(earlier_period(np.float32(weights)))
    assert received.tolist() == expected_of(weights)


@given(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=1, max_size=8))
def test_equals_reference(weights):
    assert np.asarray(earlier_period(np.float32(weights))).tolist() == expected_of(weights)
