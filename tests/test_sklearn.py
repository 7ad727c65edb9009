"""NeuralCalibrator: a classifier of scikit-learn, calibrated also by its columns."""

import pickle
from typing import ClassVar

import numpy as np
import pandas
import pytest
import scipy.optimize
import scipy.special
import sklearn.base
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import keras_calibration as kc
from class_worlds import class_rows
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
    return make_pipeline(make_column_transformer((StandardScaler(), [0, 1])), LogisticRegression())


@pytest.mark.slow
def test_a_field_that_the_classifier_leaves_out_is_calibrated():
    x, y = make_rows()
    new_x, new_y = make_rows(seed=1)
    base = without_the_site().fit(x, y)
    calibrator = NeuralCalibrator(without_the_site(), fields=[2]).fit(x, y)
    weights = calibrator.model_.report.weights
    assert sum(weights.get(name, 0) for name in ("field_bias", "field_ilps", "trees")) > 0.8
    after = calibrator.predict_proba(new_x)
    assert after.shape == (3000, 2)
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-12)
    assert log_loss(new_y, after) < log_loss(new_y, base.predict_proba(new_x)) - 0.03
    for site in range(3):
        rows = x[:, 2] == site
        site_mean = calibrator.predict_proba(x[rows])[:, 1].mean()
        assert site_mean == pytest.approx(y[rows].mean(), abs=0.01)
    np.testing.assert_array_equal(calibrator.predict(new_x), after.argmax(axis=1))


@pytest.mark.slow
def test_data_frames_names_of_classes_and_weights():
    x, y = make_rows(1000)
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": SITES[x[:, 2].astype(int)]})
    base = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["site"]), remainder="passthrough"),
        HistGradientBoostingClassifier(max_iter=20),
    )
    names = np.array(["bad", "good"])[y]
    calibrator = NeuralCalibrator(base, fields=["site"], numeric=["b"], methods="field_bias", cv=2)
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
    calibrator = NeuralCalibrator(FrozenEstimator(base), methods="platt")
    calibrator.fit(x[1000:], y[1000:], sample_weight=weights)
    scores = base.predict_proba(x)[:, 1]
    expected = kc.calibrate_scores(
        scores[1000:], y[1000:], None, weights, from_logits=False, methods="platt", verbose=0
    )
    np.testing.assert_allclose(
        calibrator.predict_proba(x)[:, 1],
        expected.predict({"score": scores}, verbose=0)[:, 0],
        rtol=1e-5,
    )


def test_scores_without_a_scale_become_probabilities():
    x, y = make_rows()
    calibrator = NeuralCalibrator(LinearSVC(), methods="platt").fit(x, y)
    probabilities = calibrator.predict_proba(x)[:, 1]
    assert probabilities.mean() == pytest.approx(y.mean(), abs=0.01)
    in_pipeline = make_pipeline(StandardScaler(), NeuralCalibrator(LinearSVC(), methods="platt"))
    received = in_pipeline.fit(x, y).predict_proba(x)[:, 1]
    np.testing.assert_allclose(received, probabilities, atol=0.02)


def test_numbers_that_are_no_ids_are_refused():
    x, y = make_rows(300)
    with pytest.raises(ValueError, match=r"Column 0 of `fields` must hold strings or whole"):
        NeuralCalibrator(fields=[0]).fit(x, y)
    calibrator = NeuralCalibrator(without_the_site(), fields=[2], methods="field_bias").fit(x, y)
    with pytest.raises(ValueError, match="Column 2 of `fields`"):
        calibrator.predict_proba(x + 0.5)


def make_class_rows(num_rows=1500, seed=0):
    """A data frame and names of three classes; their order is not that of the alphabet."""
    x, labels = class_rows(num_rows, effect=1.0, seed=seed)
    frame = pandas.DataFrame(x["scores"], columns=["a", "b", "c"])
    return frame.assign(site=SITES[x["site"]]), np.array(["red", "green", "blue"])[labels]


def from_scores():
    """A classifier that does not see the site."""
    columns = make_column_transformer((StandardScaler(), ["a", "b", "c"]))
    return make_pipeline(columns, LogisticRegression())


def in_order_of(classes, labels):
    return np.searchsorted(classes, labels)


@pytest.mark.slow
def test_a_field_of_three_classes():
    frame, names = make_class_rows(3000)
    new, new_names = make_class_rows(3000, seed=1)
    calibrator = NeuralCalibrator(from_scores(), fields=["site"], methods="neural", cv=3)
    calibrator.fit(frame, names)
    assert calibrator.classes_.tolist() == ["blue", "green", "red"]
    after = calibrator.predict_proba(new)
    assert after.shape == (3000, 3)
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-12)
    numbers = in_order_of(calibrator.classes_, new_names)
    before = from_scores().fit(frame, names).predict_proba(new)
    assert log_loss(numbers, after) < log_loss(numbers, before) - 0.1
    predicted = calibrator.predict(new)
    np.testing.assert_array_equal(predicted, calibrator.classes_[after.argmax(axis=1)])
    assert np.mean(predicted == new_names) > 0.5


@pytest.mark.slow
def test_weights_and_a_frozen_classifier_of_three_classes():
    frame, names = make_class_rows()
    weights = np.random.default_rng(0).choice([0.5, 2.0], 1000)
    base = from_scores().fit(frame[:500], names[:500])
    calibrator = NeuralCalibrator(FrozenEstimator(base), methods="vector")
    calibrator.fit(frame[500:], names[500:], sample_weight=weights)
    scores = base.predict_proba(frame)
    expected = kc.calibrate_scores(
        scores[500:],
        in_order_of(base.classes_, names[500:]),
        None,
        weights,
        from_logits=False,
        methods="vector",
        verbose=0,
    ).predict({"score": scores}, verbose=0)
    received = calibrator.predict_proba(frame)
    np.testing.assert_allclose(received, expected, rtol=1e-5)
    loaded = pickle.loads(pickle.dumps(calibrator))
    np.testing.assert_allclose(loaded.predict_proba(frame), received, atol=1e-6)


def test_a_class_without_rows_to_calibrate_keeps_its_column():
    frame, names = make_class_rows(900)
    base = from_scores().fit(frame, names)
    rows = names != "green"
    with pytest.warns(UserWarning, match="no rows of class 1"):
        calibrator = NeuralCalibrator(FrozenEstimator(base)).fit(frame[rows], names[rows])
    received = calibrator.predict_proba(frame)
    assert calibrator.classes_.tolist() == ["blue", "green", "red"]
    assert received.shape == (900, 3)
    assert np.isfinite(received).all()
    with pytest.raises(ValueError, match=r"unseen labels.*pink"):
        calibrator.fit(frame, np.where(rows, names, "pink"))


def test_probabilities_of_exactly_0():
    """As in `calibrate_scores`, they count as the smallest normal float32."""
    frame, names = make_class_rows()
    x = frame[["a", "b", "c"]].to_numpy()
    forest = RandomForestClassifier(10, random_state=0).fit(x[:700], names[:700])
    scores = forest.predict_proba(x)
    assert (scores == 0).any()
    calibrator = NeuralCalibrator(FrozenEstimator(forest), methods="temperature")
    with pytest.warns(UserWarning, match="exactly 0 or 1, and a label that says otherwise"):
        calibrator.fit(x[700:], names[700:])
    received = calibrator.predict_proba(x)
    logits = np.log(np.maximum(scores.astype("float32"), 2.0**-53, dtype=float))
    numbers = in_order_of(forest.classes_, names[700:])

    def loss(scale):
        return log_loss(numbers, scipy.special.softmax(scale * logits[700:], axis=1))

    scale = scipy.optimize.minimize_scalar(loss, bounds=(1e-3, 2), method="bounded").x
    expected = scipy.special.softmax(scale * logits, axis=1)
    np.testing.assert_allclose(received, expected, atol=1e-4)


def test_class_scores_without_a_scale_in_a_pipeline():
    frame, names = make_class_rows()
    x = frame[["a", "b", "c"]].to_numpy()
    inner = NeuralCalibrator(LinearSVC(), methods="quick")
    pipeline = make_pipeline(StandardScaler(), inner).fit(x, names)
    received = pipeline.predict_proba(x)
    shares = np.mean(names[:, None] == pipeline.classes_, axis=0)
    np.testing.assert_allclose(received.mean(axis=0), shares, atol=0.01)
    pairwise = NeuralCalibrator(SVC(decision_function_shape="ovo"))
    with pytest.raises(ValueError, match=r"each of 4 classes.*\(40, 6\).*\"ovr\""):
        pairwise.fit(x[:40], np.arange(40) % 4)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least two classes"):
        NeuralCalibrator().fit(np.zeros((30, 2)), np.zeros(30))


@pytest.mark.parametrize("num_classes", [2, 3])
def test_splits_without_a_class_are_refused(num_classes):
    labels = np.repeat(np.arange(num_classes), 20)
    with pytest.raises(ValueError, match=f"without one of the {num_classes} classes"):
        NeuralCalibrator(cv=KFold(num_classes)).fit(np.zeros((len(labels), 2)), labels)


def grouped_rows():
    """Rows in groups of 20 that share their label's noise, so that a leak would be seen."""
    x, y = make_rows(600)
    group = np.repeat(np.arange(30), 20)
    return x, y, group, np.random.default_rng(1).exponential(size=600)


class Recording(LogisticRegression):
    """Keeps the rows and weights of every fit."""

    fits: ClassVar[list] = []

    def fit(self, X, y, sample_weight=None):
        self.fits.append((np.array(X), sample_weight))
        return super().fit(X, y, sample_weight)


@pytest.mark.slow
def test_groups_stay_together_in_both_cross_validations():
    x, y, group, _ = grouped_rows()
    x = np.c_[x, group]
    Recording.fits.clear()
    by_argument = NeuralCalibrator(Recording(), cv=GroupKFold(3), methods="quick")
    by_argument.fit(x, y, groups=group)
    splits = list(GroupKFold(3).split(x, y, group))
    trained = [set(rows[:, -1]) for rows, _ in Recording.fits if len(rows) < len(x)]
    assert trained == [set(group[train]) for train, _ in splits]
    as_list = NeuralCalibrator(LogisticRegression(), cv=splits, methods="quick").fit(x, y)
    np.testing.assert_array_equal(by_argument.predict_proba(x), as_list.predict_proba(x))
    # The folds of `calibrate` are the test sets, which keep the groups together.
    assert as_list.model_.report.num_folds == 3
    assert as_list.set_params(folds=2).fit(x, y).model_.report.num_folds == 2


def test_rows_in_no_test_set_are_not_used_for_calibration():
    x, y, _, weights = grouped_rows()
    calibrator = NeuralCalibrator(GaussianNB(), cv=TimeSeriesSplit(3), methods="quick")
    calibrator.fit(x, y, weights)
    assert calibrator.model_.report.num_rows == 450
    held_out, numbers = [], []
    for train, test in TimeSeriesSplit(3).split(x):
        base = GaussianNB().fit(x[train], y[train], weights[train])
        held_out += base.predict_proba(x[test])[:, 1].tolist()
        numbers += test.tolist()
    expected = kc.calibrate_scores(
        np.array(held_out), y[numbers], sample_weight=weights[numbers], methods="quick", verbose=0
    )
    served = GaussianNB().fit(x, y, weights).predict_proba(x)[:, 1]
    np.testing.assert_allclose(
        calibrator.predict_proba(x)[:, 1],
        expected.predict({"score": served.astype("float32")}, verbose=0)[:, 0],
        rtol=1e-5,
    )
    with pytest.raises(ValueError, match="each row in at most one test set"):
        NeuralCalibrator(GaussianNB(), cv=ShuffleSplit(3, random_state=0)).fit(x, y)


@pytest.mark.slow
def test_weights_reach_the_last_step_of_a_pipeline():
    x, y, _, weights = grouped_rows()
    Recording.fits.clear()
    NeuralCalibrator(make_pipeline(StandardScaler(), Recording()), methods="quick").fit(
        x, y, weights
    )
    np.testing.assert_array_equal(Recording.fits[0][1], weights)
    assert all(given is not None for _, given in Recording.fits)
    pipeline = make_pipeline(StandardScaler(), Recording())
    NeuralCalibrator(pipeline, methods="quick").fit(x, y, recording__sample_weight=2 * weights)
    np.testing.assert_array_equal(Recording.fits[6][1], 2 * weights)
    with (
        pytest.warns(UserWarning, match="KNeighborsClassifier takes no sample weights"),
        pytest.warns(UserWarning, match="rows have a probability of exactly 0 or 1"),
    ):
        NeuralCalibrator(KNeighborsClassifier(), methods="quick").fit(x, y, weights)


@pytest.mark.slow
def test_metadata_routing():
    x, y, group, weights = grouped_rows()
    plain = NeuralCalibrator(LogisticRegression(), cv=GroupKFold(3), methods="quick")
    plain.fit(x, y, weights, groups=group)
    with sklearn.config_context(enable_metadata_routing=True):
        base = make_pipeline(LogisticRegression().set_fit_request(sample_weight=True))
        routed = NeuralCalibrator(base, cv=GroupKFold(3), methods="quick")
        routed.fit(x, y, sample_weight=weights, groups=group)
        unweighted = NeuralCalibrator(
            LogisticRegression().set_fit_request(sample_weight=False), methods="quick"
        )
        unweighted.fit(x, y, sample_weight=weights)
        with pytest.raises(TypeError, match="unexpected argument"):
            routed.fit(x, y, sample_weight=weights, groups=group, other=group)
    np.testing.assert_allclose(routed.predict_proba(x), plain.predict_proba(x), rtol=1e-6)
    alone = LogisticRegression().fit(x, y)
    np.testing.assert_allclose(unweighted.estimator_.coef_, alone.coef_)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks():
    # The model computes in float32, where the last digits depend on the place in the batch.
    expected = {"check_methods_sample_order_invariance": "1e-7 relative is asked for."}
    # Their 15 different rows of 30 columns are separable: the prior of the scales decides. Weights
    # are relative to their mean, so that it counts rows, not weights.
    for kind in ("dense", "sparse"):
        expected[f"check_sample_weight_equivalence_on_{kind}_data"] = "The prior counts rows."
    results = check_estimator(
        NeuralCalibrator(), expected_failed_checks=expected, on_skip=None, on_fail=None
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    assert len(results) > 40
