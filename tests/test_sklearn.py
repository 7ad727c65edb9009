"""NeuralCalibrator: a classifier of scikit-learn, calibrated also by its columns."""

import pickle

import numpy as np
import pandas
import pytest
import sklearn.base
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import keras_calibration as kc
from keras_calibration.sklearn import NeuralCalibrator

SITES = np.array(["news", "games", "mail"])


def make_rows(num_rows=3000, seed=0):
    """Columns and labels; the sites shift the logit."""
    generator = np.random.default_rng(seed)
    number = generator.integers(0, 3, num_rows)
    x = generator.normal(size=(num_rows, 2))
    logits = x[:, 0] - 1 + np.array([-1.0, 0.0, 1.2])[number]
    labels = generator.random(num_rows) < 1 / (1 + np.exp(-logits))
    return np.c_[x, number], labels.astype(int)


def log_loss(labels, probabilities):
    return -np.mean(np.log(probabilities[np.arange(len(labels)), labels]))


def without_the_site():
    """A classifier of the first two columns."""
    from sklearn.compose import make_column_transformer

    return make_pipeline(make_column_transformer((StandardScaler(), [0, 1])), LogisticRegression())


def test_a_field_that_the_classifier_leaves_out_is_calibrated():
    x, y = make_rows()
    new_x, new_y = make_rows(seed=1)
    base = without_the_site().fit(x, y)
    calibrator = NeuralCalibrator(without_the_site(), fields=[2]).fit(x, y)
    assert calibrator.model_.report.chosen == "field_bias"
    after = calibrator.predict_proba(new_x)
    assert after.shape == (3000, 2)
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-12)
    assert log_loss(new_y, after) < log_loss(new_y, base.predict_proba(new_x)) - 0.03
    for site in range(3):
        rows = x[:, 2] == site
        of_site = calibrator.predict_proba(x[rows])[:, 1].mean()
        assert of_site == pytest.approx(y[rows].mean(), abs=0.01)
    np.testing.assert_array_equal(calibrator.predict(new_x), after.argmax(axis=1))


def test_data_frames_names_of_classes_and_weights():
    x, y = make_rows(1000)
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": SITES[x[:, 2].astype(int)]})
    from sklearn.compose import make_column_transformer

    base = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["site"]), remainder="passthrough"),
        HistGradientBoostingClassifier(max_iter=20),
    )
    names = np.array(["bad", "good"])[y]
    calibrator = NeuralCalibrator(base, fields=["site"], numeric=["b"], method="field_bias", cv=2)
    calibrator.fit(frame, names)
    assert calibrator.classes_.tolist() == ["bad", "good"]
    assert set(calibrator.predict(frame[:50])) <= {"bad", "good"}
    again = sklearn.base.clone(calibrator).fit(frame, names)
    expected = calibrator.predict_proba(frame)
    np.testing.assert_allclose(again.predict_proba(frame), expected, atol=1e-6)
    loaded = pickle.loads(pickle.dumps(calibrator))
    np.testing.assert_allclose(loaded.predict_proba(frame), expected, atol=1e-6)


def test_a_frozen_classifier_is_used_as_it_is():
    x, y = make_rows()
    base = GaussianNB().fit(x[:1000], y[:1000])
    weights = np.random.default_rng(0).choice([0.5, 2.0], 2000)
    calibrator = NeuralCalibrator(FrozenEstimator(base), method="platt")
    calibrator.fit(x[1000:], y[1000:], sample_weight=weights)
    scores = base.predict_proba(x)[:, 1]
    expected = kc.calibrate_scores(
        scores[1000:], y[1000:], None, weights, from_logits=False, method="platt", verbose=0
    )
    np.testing.assert_allclose(
        calibrator.predict_proba(x)[:, 1],
        expected.predict({"score": scores}, verbose=0)[:, 0],
        rtol=1e-5,
    )


def test_scores_without_a_scale_become_probabilities():
    x, y = make_rows()
    calibrator = NeuralCalibrator(LinearSVC(), method="platt").fit(x, y)
    probabilities = calibrator.predict_proba(x)[:, 1]
    assert probabilities.mean() == pytest.approx(y.mean(), abs=0.01)
    in_pipeline = make_pipeline(StandardScaler(), NeuralCalibrator(LinearSVC(), method="platt"))
    received = in_pipeline.fit(x, y).predict_proba(x)[:, 1]
    np.testing.assert_allclose(received, probabilities, atol=0.02)


def test_numbers_that_are_no_ids_are_refused():
    x, y = make_rows(300)
    with pytest.raises(ValueError, match=r"Column 0 of `fields` must hold strings or whole"):
        NeuralCalibrator(fields=[0]).fit(x, y)
    calibrator = NeuralCalibrator(without_the_site(), fields=[2], method="field_bias").fit(x, y)
    with pytest.raises(ValueError, match="Column 2 of `fields`"):
        calibrator.predict_proba(x + 0.5)


@pytest.mark.parametrize("labels", [np.zeros(30), np.arange(30) % 3])
def test_other_than_two_classes_are_refused(labels):
    with pytest.raises(ValueError, match="two classes"):
        NeuralCalibrator().fit(np.zeros((30, 2)), labels)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks():
    # The model computes in float32, where the last digits depend on the place in the batch.
    in_float32 = {"check_methods_sample_order_invariance": "1e-7 relative is asked for."}
    results = check_estimator(
        NeuralCalibrator(), expected_failed_checks=in_float32, on_skip=None, on_fail=None
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    assert len(results) > 40
