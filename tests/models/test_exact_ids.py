"""Ids of nine digits reach the head exactly, on every road into a model."""

import keras
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import tensorflow as tf

import keras_calibration as kc
from batches import Batches
from keras_calibration.layers import FieldBias
from keras_calibration.models import CalibratedModel

pytestmark = pytest.mark.tensorflow

FIRST, NUM_IDS, NUM_ROWS = 10**9, 40, 300  # float32 holds one of 64 of these ids
OFFSETS = np.linspace(-2, 2, NUM_IDS)
RNG = np.random.default_rng(0)
PLACE = RNG.integers(0, NUM_IDS, NUM_ROWS)
USER, SCORE = PLACE + FIRST, RNG.normal(size=NUM_ROWS).astype("float32")
EXPECTED = 1 / (1 + np.exp(-SCORE - OFFSETS[PLACE]))
Y = (RNG.random(NUM_ROWS) < EXPECTED).astype("float32")
FLOATS = {"user": USER.astype("float64"), "score": SCORE}


def make_base(dtype):
    """A base model of a score, which has another input."""
    inputs = {
        "user": keras.Input((), dtype=dtype, name="user"),
        "score": keras.Input((), name="score"),
    }
    column = keras.layers.Reshape((1,))(inputs["score"])
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(column))


def make_model():
    """A model whose head knows the offset of each id."""
    lookup = keras.layers.IntegerLookup(vocabulary=np.arange(NUM_IDS) + FIRST)
    head = FieldBias({"user": lookup})
    model = CalibratedModel(make_base("int64"), head)
    head._offsets.assign([0.0, *OFFSETS, 0.0])  # the lookup's unknown value, and "other"
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


def dataset(x):
    return tf.data.Dataset.from_tensor_slices(x).batch(100)


ROADS = {
    "arrays": lambda model: model.predict(FLOATS, verbose=0),
    "lists": lambda model: model.predict({k: v.tolist() for k, v in FLOATS.items()}, verbose=0),
    "pandas": lambda model: model.predict(pd.DataFrame(FLOATS).astype({"user": "Float64"})),
    "Polars": lambda model: model.predict(pl.DataFrame(FLOATS), verbose=0),
    "Arrow": lambda model: model.predict(pa.table(FLOATS), verbose=0),
    "data set": lambda model: model.predict(dataset(FLOATS), verbose=0),
    "PyDataset": lambda model: model.predict(Batches(FLOATS), verbose=0),
    "one batch": lambda model: model.predict_on_batch(FLOATS),
    "call with tensors": lambda model: model({k: tf.constant(v) for k, v in FLOATS.items()}),
    "head with a table": lambda model: keras.ops.sigmoid(model.head(SCORE, pd.DataFrame(FLOATS))),
    "head in a graph": lambda model: keras.ops.sigmoid(
        tf.function(lambda score, user: model.head(score, {"user": user}))(SCORE, FLOATS["user"])
    ),
}


@pytest.mark.parametrize("road", ROADS)
def test_predictions_of_ids_in_float64(model, road):
    received = np.ravel(keras.ops.convert_to_numpy(ROADS[road](model)))
    np.testing.assert_allclose(received, EXPECTED, rtol=1e-5)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("values", [USER + 0.5, USER.astype("float32"), [np.nan] * NUM_ROWS])
def test_data_sets_refuse_ids_that_would_change(model, values):
    x = {**FLOATS, "user": np.asarray(values)}
    kinds = (ValueError, tf.errors.InvalidArgumentError)
    message = r"(?i)input \\?'user\\?'"
    for inputs in (x, dataset(x)):
        with pytest.raises(kinds, match=message):
            model.predict(inputs, verbose=0)
    training = make_model()
    training.compile("adam", "binary_crossentropy")
    for arguments in ((x, Y), (dataset((x, Y)),)):
        with pytest.raises(kinds, match=message):
            training.fit(*arguments, shuffle=False, verbose=0)


@pytest.mark.filterwarnings("ignore:The fit of the head predicts new rows worse")  # of few rows
def test_a_fit_of_ids_in_float64_is_that_of_integers():
    x = {"user": USER, "score": SCORE}
    weights, intervals = [], []
    for inputs, labels in [(x, Y), (FLOATS, Y), (dataset((FLOATS, Y)), None)]:
        model = make_model()
        kc.fit_head(model, inputs, labels, only_if_better=False, verbose=0)
        weights.append(np.concatenate([np.ravel(weight) for weight in model.head.get_weights()]))
        intervals.append(np.concatenate(kc.interval(model, FLOATS)))
    np.testing.assert_array_equal(weights, [weights[0]] * 3)
    np.testing.assert_array_equal(intervals, [intervals[0]] * 3)
    assert np.abs(weights[0]).max() > 0.5


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_input_of_floats_cannot_hold_them(dtype):
    base = make_base(dtype)
    options = {"fields": ["user"], "methods": "field_bias", "verbose": 0}
    for user in (USER, FLOATS["user"]):
        with pytest.raises(ValueError, match=r"'user'.*integers.*dtype=\"int64\""):
            kc.calibrate(base, {**FLOATS, "user": user}, Y, **options)
    few = {**FLOATS, "user": PLACE.astype("float64")}
    model = kc.calibrate(base, few, Y, **options)
    integers = model.predict({**few, "user": PLACE}, verbose=0)
    np.testing.assert_array_equal(model.predict(few, verbose=0), integers)
    with pytest.raises(ValueError, match=r"'user'.*1000000034"):
        model.predict(FLOATS, verbose=0)
