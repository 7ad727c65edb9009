"""What a calibrated model makes of inputs in other forms than its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calibration as kc
from keras_calibration._rows.inputs import expected_inputs
from keras_calibration.layers import PlattScaling
from keras_calibration.models import CalibratedModel

RNG = np.random.default_rng(0)
NUM_ROWS = 400
X = {
    "price": RNG.normal(size=(NUM_ROWS, 1)).astype("float32"),
    "rate": RNG.normal(size=(NUM_ROWS, 1)).astype("float32"),
}
Y = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-X["price"][:, 0]))).astype("float32")
# `dict(frame)` has every column, in any order, and its columns have one axis.
FRAME = {
    "age": RNG.normal(40, 10, NUM_ROWS),
    "rate": X["rate"][:, 0],
    "price": X["price"][:, 0],
}


def make_base(form):
    price, rate = keras.Input((1,), name="price"), keras.Input((1,), name="rate")
    inputs = {
        "dict": {"price": price, "rate": rate},
        "list": [price, rate],
        "tensor": price,
    }[form]
    hidden = price if form == "tensor" else keras.ops.concatenate([price, 10 * rate], axis=1)
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(hidden))


def as_form(form):
    return {"dict": X, "list": [X["price"], X["rate"]], "tensor": X["price"]}[form]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", ["dict", "list", "tensor"])
def test_other_columns_are_left_out_and_missing_ones_refused(form):
    base = make_base(form)
    model = CalibratedModel(base, PlattScaling())
    expected = X["price"] + (0 if form == "tensor" else 10 * X["rate"])
    batches = tf.data.Dataset.from_tensor_slices((FRAME, Y)).batch(64)
    for given in (as_form(form), FRAME, batches, batches.map(lambda x, y: x)):
        np.testing.assert_allclose(kc.base_logits(model, given), expected, atol=1e-5)
    reports = [
        kc.calibrate(base, given, Y, methods="platt", verbose=0).report.before.log_loss
        for given in (as_form(form), FRAME)
    ]
    assert reports[1] == pytest.approx(reports[0], abs=1e-6)
    values = []
    for given in (as_form(form), FRAME):
        kc.fit_head(model, given, Y, verbose=0)
        values.append(model.predict(given, verbose=0))
    np.testing.assert_allclose(values[1], values[0], atol=1e-6)
    without = {"rate": X["rate"], "age": FRAME["age"]}
    with pytest.raises(ValueError, match=r"without \['price'\]"):
        kc.base_logits(model, without)
    with pytest.raises(ValueError, match=r"without \['price'\]"):
        kc.calibrate(base, without, Y, verbose=0)


def test_inputs_keep_their_structure_and_take_the_rank_of_the_model():
    late, early = keras.Input((1,), name="z"), keras.Input((), name="a")
    columns = {"a": np.zeros((3, 1)), "z": np.ones(3), "more": np.zeros(3)}
    found = expected_inputs(columns, [late, early])
    assert [each.shape for each in found] == [(3, 1), (3,)]
    assert found[0][0, 0] == 1
    wide = keras.Input((4,), name="wide")
    assert expected_inputs(np.zeros((3, 4)), wide).shape == (3, 4)
