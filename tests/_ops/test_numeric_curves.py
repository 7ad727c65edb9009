"""Curves of numeric columns, against NumPy's interpolation in float64."""

import numpy as np
import pytest

from backends import compiled, gradients
from keras_calibration._ops.numeric_curves import numeric_curves, places_on_knots

KNOTS = np.array([[-2.0, 0.0, 0.5, 3.0], [1.0, 5.0, 5.0, 5.0], [7.0, 7.0, 7.0, 7.0]], "float32")
CURVES = np.array(
    [[1.0, -1.0, 4.0, 0.5, 9.0], [2.0, 3.0, 3.0, 3.0, -9.0], [0.25] * 4 + [1.0]], "float32"
)
ROW = [-np.inf, -3e38, -2.0, -1e-40, 0.0, 0.2, 0.5, 1.0, 3.0, 4.9, 5.0, 7.0, 3e38, np.inf, np.nan]
VALUES = np.array([ROW] * 3, "float32")


def reference(values, knots, curve):
    used = np.unique(knots)
    inside = np.interp(values.astype("float64"), used, curve[: len(used)])
    return np.where(np.isnan(values), curve[-1], inside)


def evaluated(values, knots, curves):
    return numeric_curves(places_on_knots(values, knots), curves)


@pytest.mark.parametrize("call", [evaluated, compiled(evaluated)], ids=["eager", "compiled"])
def test_interpolates(call):
    expected = [reference(*column) for column in zip(VALUES, KNOTS, CURVES, strict=True)]
    np.testing.assert_allclose(call(VALUES, KNOTS, CURVES), expected, atol=1e-6)


def test_the_gradient_by_the_curves_is_the_hat_functions():
    (received,) = gradients(lambda curves: evaluated(VALUES, KNOTS, curves), CURVES)
    received = np.asarray(received)
    np.testing.assert_allclose(received[:, -1], 1, atol=1e-6)  # of the one value that is NaN
    for column, (values, knots) in enumerate(zip(VALUES, KNOTS, strict=True)):
        num_places = len(np.unique(knots))
        hats = [np.append(unit, 0.0) for unit in np.eye(num_places)]
        expected = [reference(values, knots, hat).sum() for hat in hats]
        # The last knot may be repeated: its value is that of any of them.
        totals = [*received[column, : num_places - 1], received[column, num_places - 1 : -1].sum()]
        np.testing.assert_allclose(totals, expected, atol=1e-6)
