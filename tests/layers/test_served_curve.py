"""An exported curve gives what the layer gives, to the last bit."""

import contextlib

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import ops

from backends import examples
from keras_calibration.layers import ILPS, BlendedHead, FieldBias
from keras_calibration.layers.served_curve import curves_as_tables, tables_of

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tensorflow


def check(curve, compiled=False):
    """Around the knots, on them, beside them and at no number; the curve never falls."""
    knots = curve.get_knots()
    around = np.random.default_rng(0).normal(size=5000) * np.ptp(knots) + np.mean(knots)
    beside = [np.nextafter(knots, end, dtype="float32") for end in (-np.inf, np.inf)]
    many = np.sort(np.concatenate([around.astype("float32"), knots, *beside]))
    many = np.append(many, np.float32([np.inf, np.nan, -np.inf]))
    expected = ops.convert_to_numpy(curve(many))
    with curves_as_tables(curve):
        run = tf.function(curve, jit_compile=True) if compiled else curve
        received = ops.convert_to_numpy(run(many))
        assert curve(many[:5, None]).shape == (5, 1)
    if compiled:  # a compiler may round otherwise
        size = np.abs(expected[np.isfinite(expected)]).max()
        np.testing.assert_allclose(received, expected, rtol=1e-6, atol=1e-6 * size)
    else:
        np.testing.assert_array_equal(received, expected)
    assert not np.any(np.diff(received[:-3]) < 0)


@pytest.mark.parametrize("monotonic", ["penalty", "strict"])
@pytest.mark.parametrize("extrapolation", ["linear", "constant"])
def test_a_fitted_curve(monotonic, extrapolation):
    curve = ILPS(13, monotonic=monotonic, extrapolation=extrapolation)
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=900)
    curve.fit(logits, rng.random(900) < 1 / (1 + np.exp(-logits)))
    check(curve)
    check(curve, compiled=True)


@settings(max_examples=examples(60))
@given(
    gaps=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12),
    rises=st.lists(st.floats(0, 1e4) | st.floats(0, 1e-6), min_size=13, max_size=13),
    first=st.floats(-1e3, 1e3),
)
def test_a_curve_of_any_lines(gaps, rises, first):
    knots = first + np.cumsum([0.0, *gaps], dtype="float32")
    assume(np.all(np.diff(knots) > 0))
    curve = ILPS(len(knots), knots=knots.tolist(), monotonic="penalty")
    curve.build((None, 1))
    (weight,) = curve.trainable_weights
    weight.assign((first + np.cumsum(rises[: len(knots)])).astype("float32"))
    check(curve)


class Shifted(ILPS):
    def calibrate(self, logits):
        return super().calibrate(logits) + 1.0


def test_only_curves_of_the_package_are_read_from_tables_and_only_inside():
    head = BlendedHead([FieldBias({"site": 3}, ILPS(5)), ILPS(4), Shifted(7)])
    inputs = keras.Input((1,)), {"site": keras.Input((), dtype="int32")}
    head(*inputs)
    assert sorted(len(table) for table in tables_of(head)) == [4, 5]
    logits, features = np.linspace(-3, 3, 9)[:, None], {"site": np.arange(9) % 4}
    before = ops.convert_to_numpy(head(logits, features))
    with curves_as_tables(head) as tables:
        np.testing.assert_array_equal(head(logits, features), before)
        tables[0].assign(tables[0] + 1)
        assert np.abs(ops.convert_to_numpy(head(logits, features)) - before).min() > 0.01
    with contextlib.suppress(KeyError), curves_as_tables(head):
        raise KeyError
    np.testing.assert_array_equal(head(logits, features), before)
