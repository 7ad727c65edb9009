"""A column that is the label, or known only with it, is named; an honest strong one is not."""

import warnings

import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration._rows.rows import Rows
from keras_calibration.calibration.label_columns import warn_of_label_columns

N = 3000
RNG = np.random.default_rng(0)
LOGIT = RNG.normal(-1.5, 1, N)
LABELS = (RNG.random(N) < 1 / (1 + np.exp(-LOGIT))).astype(float)
FOLD = RNG.permutation(N) % 3
NOISE = RNG.normal(size=N)
CLASS = RNG.integers(0, 4, N)


def named(column, labels=LABELS, logits=LOGIT, weights=None):
    """Whether the column is named."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rows = Rows(logits, labels, weights, {"x": np.asarray(column)})
        warn_of_label_columns(rows, FOLD)
    assert all("The column 'x' alone" in str(each.message) for each in told)
    return bool(told)


THE_LABEL = {
    "as a number": LABELS,
    "as a truth value": LABELS > 0,
    "as a text": np.where(LABELS > 0, "yes", "no").astype(object),
    "as bytes": np.where(LABELS > 0, b"ja", "nö".encode()),
    "as bytes objects": np.where(LABELS > 0, b"ja", "nö".encode()).astype(object),
    "as bytes that are no text": np.where(LABELS > 0, b"\xfe", b"\xff"),
    "as a text, missing for negatives": np.where(LABELS > 0, "yes", None),
    "mirrored": 1 - LABELS,
    "with noise": LABELS + 0.05 * NOISE,
    "a price of what was bought": np.where(LABELS > 0, np.exp(NOISE), 0.0),
    "missing without a purchase": np.where(LABELS > 0, NOISE, np.nan),
    "a column (n, 1)": LABELS[:, None],
    "ids, one of which is bought": np.where(LABELS > 0, 7, RNG.integers(10, 40, N)),
}


@pytest.mark.parametrize("case", THE_LABEL)
@pytest.mark.parametrize("weights", [None, np.full(N, 1e-6), 1.0 + np.arange(N) % 3], ids=str)
def test_the_label_is_named(case, weights):
    assert named(THE_LABEL[case], weights=weights)


@pytest.mark.parametrize("rate", [0.004, 0.5, 0.99])
def test_the_label_is_named_at_any_rate(rate):
    labels = (RNG.random(N) < rate).astype(float)
    assert named(labels, labels)
    assert named(np.where(labels > 0, 0.0, 0.3 + NOISE**2), labels)


def test_the_label_of_classes_is_named():
    labels = np.eye(4)[CLASS]
    assert named(CLASS, labels, np.zeros((N, 4)))
    assert named(CLASS * 2.0 + 0.1 * NOISE, labels, np.zeros((N, 4)))
    assert not named(CLASS // 2, labels, np.zeros((N, 4)))


STRONG = LABELS * 4 + NOISE  # AUC .998
HONEST = {
    "noise": NOISE,
    "an id for each row": np.arange(N),
    "the id of each row as a text": np.arange(N).astype(str),
    "two rows for each id": np.arange(N) // 2,
    "the score": LOGIT,
    "a strong feature": STRONG,
    "one in twenty labels is wrong": np.abs(LABELS - (RNG.random(N) < 0.05)),
    "constant": np.zeros(N),
    "missing": np.full(N, np.nan),
}


@pytest.mark.parametrize("case", HONEST)
def test_an_honest_column_is_not_named(case):
    assert not named(HONEST[case])


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e3])
def test_a_feature_of_a_model_that_is_as_good_is_not_named(unit):
    """The classes are apart, and the model says so, in whatever unit."""
    logits = unit * (20 * LABELS - 10 + NOISE)
    assert not named(logits / 3, logits=logits)
    assert not named(np.digitize(logits / unit, [-5, 5]), logits=logits)


def test_few_rows_say_nothing():
    labels = np.zeros(N)
    labels[:5] = 1
    assert not named(labels, labels)


@pytest.mark.parametrize("argument", ["fields", "numeric"])
def test_calibrate_names_the_column(argument):
    columns = {"site": RNG.integers(0, 5, N), "click": LABELS.astype(int)}
    given = {"fields": ["site"], "methods": "bias", "verbose": 0, "from_logits": True}
    given |= {argument: ["click", *given.get(argument, [])]}
    with pytest.warns(UserWarning, match="The column 'click' alone predicts the labels"):
        kc.calibrate_scores(LOGIT, LABELS, columns, **given)
