"""The metrics as Keras users meet them: in `compile`, `fit` and `evaluate` of a plain model."""

import keras
import numpy as np
import pytest

from backends import ON_TENSORFLOW, digits
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.metrics.additive_metric import accumulator_dtype

RNG = np.random.default_rng(0)
X = RNG.normal(size=(203, 3)).astype("float32")
Y = (RNG.random(203) < 1 / (1 + np.exp(1 - X.sum(axis=1)))).astype("float32")
KEY = "calibrated_log_loss"


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])


def from_predictions(model):
    metric = CalibratedLogLoss()
    metric.update_state(Y, model.predict(X, verbose=0, batch_size=64))
    return float(metric.result())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {},
        *([{"run_eagerly": True}] if ON_TENSORFLOW else []),
        pytest.param({"jit_compile": True, "steps_per_execution": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_history_and_evaluate(model, options):
    model.compile("sgd", "binary_crossentropy", metrics=[CalibratedLogLoss()], **options)
    history = model.fit(X, Y, validation_data=(X, Y), batch_size=64, epochs=2, verbose=0).history
    assert set(history) == {"loss", KEY, "val_loss", f"val_{KEY}"}
    expected = from_predictions(model)
    # Validation rows come in order, so that the folds are the same; the last batch has 11 rows.
    assert history[f"val_{KEY}"][-1] == pytest.approx(expected, abs=digits(1e-6))
    scores = model.evaluate(X, Y, batch_size=7, verbose=0, return_dict=True)
    assert scores[KEY] == pytest.approx(expected, abs=digits(1e-6))


def test_mixed_precision(mixed_bfloat16):
    dense = keras.layers.Dense(1, activation="sigmoid", dtype="float32")
    half = keras.Sequential([keras.Input((3,)), dense, keras.layers.Activation("linear")])
    metric = CalibratedLogLoss()
    assert metric.dtype == accumulator_dtype()
    half.compile(loss="binary_crossentropy", metrics=[metric], run_eagerly=True)
    scores = half.evaluate(X, Y, verbose=0, return_dict=True)
    assert scores[KEY] == pytest.approx(from_predictions(half), abs=digits(1e-6))
    assert keras.backend.standardize_dtype(half(X[:2]).dtype) == "bfloat16"
