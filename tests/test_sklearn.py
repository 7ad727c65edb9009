"""NeuralCalibrator: a classifier of scikit-learn, calibrated also by its columns."""

import itertools
import pickle
from typing import ClassVar

import numpy as np
import pandas
import pytest
import sklearn.base
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
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
from tiers import slow_except

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


def test_class_scores_without_a_scale_in_a_pipeline():
    x, labels = class_rows(1500, effect=1.0)
    # Their order is not that of the alphabet.
    x, names = x["scores"], np.array(["red", "green", "blue"])[labels]
    inner = NeuralCalibrator(LinearSVC(), methods="quick")
    pipeline = make_pipeline(StandardScaler(), inner).fit(x, names)
    received = pipeline.predict_proba(x)
    shares = np.mean(names[:, None] == pipeline.classes_, axis=0)
    np.testing.assert_allclose(received.mean(axis=0), shares, atol=0.01)


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


@pytest.mark.filterwarnings("ignore:The groups parameter is ignored by KFold")
def test_a_number_of_folds_keeps_groups_together():
    x, y, group, _ = grouped_rows()
    Recording.fits.clear()
    calibrators = [NeuralCalibrator(Recording(), cv=3, methods="quick") for _ in range(2)]
    calibrators[0].fit(np.c_[x, group], y, groups=group)
    trained = [rows[:, -1] for rows, _ in Recording.fits if len(rows) < len(x)]
    assert len(trained) == 3
    for numbers in trained:
        assert len(numbers) == 20 * len(np.unique(numbers))
    calibrators[1].fit(np.c_[x, group], y)
    errors = [c.model_.report.scores[-1].log_loss_change_error for c in calibrators]
    assert errors[0] != errors[1]
    with pytest.raises(ValueError, match=r"`folds`.*groups"):
        NeuralCalibrator(GaussianNB(), cv=KFold(3, shuffle=True)).fit(x, y, groups=group)


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
    # The report has the cross-fitted rows by their numbers in X.
    rows = calibrator.model_.report.cross_fitted
    np.testing.assert_array_equal(rows.rows, np.sort(numbers))
    np.testing.assert_array_equal(rows.labels, y[rows.rows])
    np.testing.assert_allclose(
        rows.probabilities("identity"), np.array(held_out)[np.argsort(numbers)], rtol=1e-9
    )
    expected = kc.calibrate_scores(
        np.array(held_out), y[numbers], sample_weight=weights[numbers], methods="quick", verbose=0
    )
    served = GaussianNB().fit(x, y, weights).predict_proba(x)[:, 1]
    np.testing.assert_allclose(
        calibrator.predict_proba(x)[:, 1],
        expected.predict({"score": served.astype("float32")}, verbose=0)[:, 0],
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("base", "arguments", "num_classes", "message"),
    [
        (LogisticRegression(), {}, 1, "1 class: "),
        (LogisticRegression(), {"cv": KFold(3)}, 3, "`cv`.*KFold"),
        (LogisticRegression(), {"cv": ShuffleSplit(3, random_state=0)}, 2, "`cv`.*ShuffleSplit"),
        (SVC(decision_function_shape="ovo"), {}, 4, r"\(\d+, 6\).*\"ovr\""),
        (LogisticRegression(), {"fields": [0]}, 2, "column_0"),
        (LogisticRegression(), {"fields": ["site"]}, 2, "`fields`.*'site'.*Available: 0, 1"),
        (LogisticRegression(), {"fields": [np.int64(2)]}, 2, "`fields`.*2.*Available: 0, 1"),
        (LogisticRegression(), {"fields": 1, "numeric": [-1]}, 2, "`numeric`.*-1.*Available: 0, 1"),
        (LogisticRegression(), {"numeric": [1.0]}, 2, r"`numeric`.*'1\.0'"),
        (LogisticRegression(), {"numeric": [False, True]}, 2, "`numeric`.*'False', 'True'"),
        (LogisticRegression(), {"numeric": None}, 2, "`numeric`.*'None'"),
    ],
)
def test_what_fit_refuses(base, arguments, num_classes, message):
    labels = np.repeat(np.arange(num_classes), 40)
    x = np.random.default_rng(0).normal(size=(len(labels), 2))
    with pytest.raises(ValueError, match=message):
        NeuralCalibrator(base, **arguments).fit(x, labels)


def test_a_name_that_a_frame_does_not_have_is_refused_with_those_that_it_has():
    x, y = make_rows(60)
    frame = pandas.DataFrame(x, columns=["age", "price", "site"])
    with pytest.raises(ValueError, match=r"`fields`.*'sites'.*'site'.*Available: 0, 1, 2, 'age'"):
        NeuralCalibrator(LogisticRegression(), fields=["sites"]).fit(frame, y)


def test_a_classifier_without_weights_is_told():
    x, y, _, weights = grouped_rows()
    Recording.fits.clear()
    NeuralCalibrator(Recording(), methods="quick").fit(x, y, weights)
    np.testing.assert_array_equal(Recording.fits[0][1], weights)
    assert all(fit_weights is not None for _, fit_weights in Recording.fits)
    with (
        pytest.warns(UserWarning, match="KNeighborsClassifier"),
        pytest.warns(UserWarning, match="exactly 0 or 1"),
    ):
        NeuralCalibrator(KNeighborsClassifier(), methods="quick").fit(x, y, weights)


NAMES = {
    "ints": np.array([1, 2]),
    "strings": np.array(["no", "yes"]),
    "objects": np.array(["no", "yes"], dtype=object),
    "bools": np.array([False, True]),
    "floats": np.array([-1.0, 1.0]),
}


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "pipeline"])
def test_a_classifier_gets_the_labels_that_its_user_has(names, wrapped):
    x, y = make_rows(400)
    weights = dict(zip(names.tolist(), (5, 1), strict=True))
    base = LogisticRegression(class_weight=weights)
    base = make_pipeline(StandardScaler(), base) if wrapped else base
    alone = sklearn.base.clone(base).fit(x, names[y])
    labels = pandas.Series(names[y]) if wrapped else names[y]
    calibrator = NeuralCalibrator(base, methods="platt").fit(x, labels)
    received = calibrator.estimator_.predict_proba(x)
    np.testing.assert_allclose(received, alone.predict_proba(x), rtol=1e-9)
    assert calibrator.classes_.tolist() == calibrator.estimator_.classes_.tolist()
    # The calibration undoes the weights of the classes.
    assert calibrator.predict_proba(x)[:, 1].mean() == pytest.approx(y.mean(), abs=0.01)
    assert {*calibrator.predict(x)} == {*names}


class InOrderOfRows(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):
    """Class frequencies by a column; the classes stand in the order of their first rows."""

    def __init__(self, scale="probability", has_classes=True):
        self.scale, self.has_classes = scale, has_classes

    def fit(self, X, y):
        classes = y[np.sort(np.unique(y, return_index=True)[1])]
        classes = classes if self.has_classes else np.unique(y)
        values = self.values_ = np.unique(X)
        self.rates_ = [[(y[X[:, 0] == v] == c).mean() for c in classes] for v in values]
        if self.has_classes:
            self.classes_ = classes
        return self

    def _rates(self, X):
        return np.array(self.rates_)[np.searchsorted(self.values_, X[:, 0])]

    def __getattr__(self, name):
        if name == "predict_proba" and self.scale == "probability":
            return self._rates
        if name == "decision_function" and self.scale == "logit":
            return self._logits
        raise AttributeError(name)

    def _logits(self, X):
        logits = np.log(self._rates(X))
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits


# Kind of the scores, whether the classifier has `classes_` and is frozen, number of classes.
SCORES = [*itertools.product(["probability", "logit"], [True, False], [True, False], [2, 3])]
# Half of them, in which any three of the four are in all combinations.
QUICK = [case for case in SCORES if ((case[0] == "logit") + sum(case[1:])) % 2]


@pytest.mark.parametrize("case", slow_except(QUICK, SCORES), ids=str)
def test_columns_of_scores_are_matched_by_the_classes(case):
    scale, has_classes, is_frozen, num_classes = case
    generator = np.random.default_rng(0)
    number = generator.integers(0, 4, 1200)
    shares = np.array([[6, 3, 2], [1, 5, 3], [3, 1, 7], [4, 2, 2]])[:, :num_classes]
    shares = shares / shares.sum(axis=1, keepdims=True)
    drawn = (generator.random((1200, 1)) > shares[number].cumsum(axis=1)).sum(axis=1)
    names = np.array(["red", "green", "blue"])[drawn]
    # The first row has the last class of the alphabet.
    order = np.argsort(names != "red", kind="stable")
    x, names = number[order, None].astype(float), names[order]
    base = InOrderOfRows(scale, has_classes)
    base = FrozenEstimator(base.fit(x, names)) if is_frozen else base
    if is_frozen and not has_classes:
        assert not hasattr(base, "classes_")
    calibrator = NeuralCalibrator(base, methods="quick").fit(x, names)
    assert calibrator.classes_.tolist() == sorted({*names})
    received = calibrator.predict_proba(x)
    for value in range(4):
        rows = x[:, 0] == value
        observed = np.mean(names[rows, None] == calibrator.classes_, axis=0)
        np.testing.assert_allclose(received[rows].mean(axis=0), observed, atol=0.08)


class Renumbering(LogisticRegression):
    """Numbers the classes from 0, and forgets their names."""

    def fit(self, X, y, sample_weight=None):
        return super().fit(X, np.unique(y, return_inverse=True)[1], sample_weight)


def test_a_classifier_with_other_classes_is_refused():
    x, y = make_rows(200)
    with pytest.raises(ValueError, match=r"`y`.*`classes_`.*\[0 1\]"):
        NeuralCalibrator(Renumbering(), methods="platt").fit(x, y + 1)


@pytest.mark.parametrize("weight", [None, 0.0])
def test_rows_without_a_class_of_a_frozen_classifier_are_refused(weight):
    x, y = make_rows(60)
    names = np.where(y == 1, "yes", "no")
    base = FrozenEstimator(GaussianNB().fit(x, names))
    used = names == "no" if weight is None else np.full(60, True)
    weights = None if weight is None else np.where(names == "yes", weight, 1.0)
    with pytest.raises(ValueError, match=r"`y`.*\['yes'\]"):
        NeuralCalibrator(base).fit(x[used], names[used], weights)


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
        NeuralCalibrator(LogisticRegression()),
        expected_failed_checks=expected,
        on_skip=None,
        on_fail=None,
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed, failed
    assert len(results) > 40
