"""Numeric columns are float32 in every signature, whatever the frame held."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import keras_calibration as kc
from keras_calibration.export import export_savedmodel
from keras_calibration.sklearn import NeuralCalibrator
from served import serve_here

pytestmark = pytest.mark.tensorflow
DTYPES = {"score": "float32", "site": "int64", "age": "float32"}
REQUEST = {"score": [0.3, 0.3], "site": [1, 2], "age": [41.5, np.nan]}


def rows_of(num_rows=1000):
    """A frame of whole numbers, scores and labels."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": rng.integers(0, 4, num_rows), "age": rng.integers(18, 70, num_rows)}
    )
    scores = rng.beta(2, 5, num_rows)
    rates = np.clip(scores + 0.1 * np.sin(frame["age"] / 10) - 0.05 * frame["site"], 0.01, 0.99)
    return frame, scores, rng.random(num_rows) < rates


def test_a_request_may_have_a_fraction_or_a_missing_value(tmp_path):
    frame, scores, labels = rows_of()
    model = kc.calibrate_scores(
        scores, labels, frame, fields=["site"], numeric=["age"], methods=["trees"], verbose=0
    )
    assert {tensor.name: tensor.dtype for tensor in model.inputs} == DTYPES
    expected = model.predict({k: np.array(v) for k, v in REQUEST.items()}, verbose=0)[:, 0]
    assert np.isfinite(expected).all()
    path = export_savedmodel(model, tmp_path / "1", frame.assign(score=scores))
    served = serve_here(path, REQUEST)
    features = {name: REQUEST[name] for name in ("site", "age")}
    again = serve_here(path, {**features, "logit": served["logit"]}, "calibrate")
    for outputs in (served, again):
        np.testing.assert_allclose(outputs["probability"], expected, atol=1e-6)


def test_so_are_those_of_a_classifier_of_scikit_learn():
    frame, scores, labels = rows_of()
    frame["score"] = scores
    calibrator = NeuralCalibrator(
        LogisticRegression(), fields=["site"], numeric=["age"], methods=["additive"]
    ).fit(frame, labels)
    assert {tensor.name: tensor.dtype for tensor in calibrator.model_.inputs} == DTYPES
    asked = frame[:2].assign(age=[41.5, 30.0])
    assert np.isfinite(calibrator.predict_proba(asked)).all()
