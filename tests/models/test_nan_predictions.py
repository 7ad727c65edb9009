"""What cannot be calibrated is NaN, and `predict` says so."""

import warnings

import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(0)
    logits = generator.normal(-2, 1, 2000)
    return logits, (generator.random(2000) < expit(0.5 * logits)).astype(int)


def test_logits_for_a_model_of_probabilities_are_noticed(rows):
    logits, labels = rows
    model = kc.calibrate_scores(expit(logits), labels, methods="platt", verbose=0)
    score = np.array([-1.0, 0.2, 1.5, np.nan], "float32")
    with pytest.warns(UserWarning, match="^3 of 4 predictions.*pass probabilities"):
        predicted = model.predict({"score": score}, verbose=0, batch_size=2)
    assert np.isnan(predicted[:, 0]).tolist() == [True, False, True, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = model.predict({"score": score[1:2]}, verbose=0)
    np.testing.assert_array_equal(right, predicted[1:2])


def test_classes(rows):
    generator = np.random.default_rng(1)
    shares = generator.dirichlet([2.0, 1.0, 1.0], 900)
    labels = [generator.choice(3, p=share) for share in shares]
    model = kc.calibrate_scores(shares, labels, methods="temperature", verbose=0)
    with pytest.warns(UserWarning, match="^1 of 2 predictions"):
        model.predict({"score": np.array([[0.2, 0.3, 0.5], [-1.0, 0.5, 1.5]])}, verbose=0)
