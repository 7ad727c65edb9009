"""BoostedTrees: what the fit finds, and what it refuses; the tables are tested in solvers."""

import builtins

import keras
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit as sigmoid

from keras_calibration._solvers import row_order
from keras_calibration.layers import ILPS, BoostedTrees, FieldBias, FitSettings, PlattScaling

NUM_ROWS = 4000


def rows(num_rows=NUM_ROWS, seed=0, effect=1.5):
    """Logits that are wrong by an interaction of a number, partly missing, and a field."""
    generator = np.random.default_rng(seed)
    features = {
        "site": generator.integers(0, 30, num_rows),
        "device": generator.integers(0, 3, num_rows),
        "age": generator.uniform(20, 70, num_rows),
    }
    features["age"][::5] = np.nan
    logits = generator.normal(-1, 1, num_rows)
    offsets = np.random.default_rng(9).normal(0, 0.3, 30)
    true = logits + offsets[features["site"]]
    true += effect * ((features["age"] > 45) & (features["device"] == 1))
    labels = (generator.random(num_rows) < sigmoid(true)).astype(float)
    return logits, labels, features, true


def log_loss(labels, logits):
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def called(head, logits, features):
    return keras.ops.convert_to_numpy(head(logits, features)).reshape(-1).astype("float64")


def new_head(**arguments):
    return BoostedTrees({"site": 30, "device": 3}, ["age"], **arguments)


@pytest.fixture(scope="module")
def fitted():
    head = new_head()
    logits, labels, features, _ = rows()
    head.fit(logits, labels, features)
    return head


def test_it_finds_what_offsets_cannot(fitted):
    logits, labels, features, true = rows(seed=1)
    alone = FieldBias({"site": 30, "device": 3}, ILPS())
    alone.fit(*rows()[:3])
    best = log_loss(labels, true)
    with_trees = log_loss(labels, called(fitted, logits, features)) - best
    assert with_trees < 0.5 * (log_loss(labels, called(alone, logits, features)) - best)
    summary = fitted.fit_summary
    assert summary.num_iterations > 0
    # What was told of new rows is what they show.
    told = summary.cross_fitted_both - log_loss(rows()[1], rows()[3])
    assert told == pytest.approx(with_trees, abs=0.006)
    np.testing.assert_allclose(
        log_loss(rows()[1], summary.cross_fitted_logits), summary.cross_fitted_both, rtol=1e-6
    )


@pytest.mark.tensorflow  # no tensors of strings elsewhere
def test_strings_frames_and_tiny_weights_are_taken():
    logits, labels, features, _ = rows(1500)
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
    frame = pd.DataFrame(
        {
            "device": pd.Series(np.array(["a", "b", "c"])[features["device"]], dtype="string"),
            "age": pd.Series(features["age"]).round().astype("Int64"),
        }
    )
    head = BoostedTrees({"device": lookup}, ["age"], PlattScaling())
    head.fit(logits, labels, frame, np.full(1500, 1e-9))
    other = BoostedTrees({"device": 3}, ["age"], PlattScaling())
    ages = {"device": features["device"], "age": np.round(features["age"])}
    other.fit(logits, labels, ages, np.full(1500, 1e-9))
    expected = called(other, logits, ages)
    np.testing.assert_allclose(called(head, logits, frame), expected, atol=1e-6)
    assert np.isfinite(expected).all()


def test_without_lightgbm_a_fit_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "lightgbm":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    head = new_head()
    logits, labels, features, _ = rows(600)
    with pytest.raises(ImportError, match=r"libgomp\.so\.1.*libgomp1 "):
        head.fit(logits, labels, features)
    np.testing.assert_allclose(called(head, logits, features), logits, atol=1e-6)


def test_rare_values_do_not_tell_the_labels_of_the_scored_fold():
    # The logit tells the value, whose offset is lower in the fold where its labels are higher.
    generator = np.random.default_rng(2)
    base, offsets = generator.normal(-2, 0.5, 1200), generator.normal(0, 0.5, 1200)

    def rows(number):
        value = generator.integers(0, 1200, number)
        labels = generator.random(number) < 1 / (1 + np.exp(-base[value] - offsets[value]))
        return base[value], labels.astype(float), {"value": value}

    logits, labels, features = rows(6000)
    head = BoostedTrees({"value": 1200}, (), FieldBias({"value": 1200}))
    summary = head.fit(logits, labels, features, settings=FitSettings(folds=5, seed=2))
    logits, labels, features = rows(20_000)
    losses = [log_loss(labels, called(layer, logits, features)) for layer in (head, head.head)]
    # With trees on top of offsets of other folds alone: -.0014 and +.0090.
    reported = summary.cross_fitted_both - summary.cross_fitted_head
    assert reported > -0.0005
    assert losses[0] - losses[1] < 0.0005


@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")
def test_the_most_frequent_values_are_those_of_the_rows_that_counts_stand_for(monkeypatch):
    """Of 400 sites, 16 get a column of their own: those with many rows, on one line or on many."""
    monkeypatch.setattr(row_order, "_MAX_ROWS", 800)  # beyond, equal rows are added up
    rng = np.random.default_rng(0)
    site = np.arange(800) % 400
    logits = rng.normal(size=800)
    labels = (rng.random(800) < sigmoid(logits)).astype(float)
    counts = np.where(site >= 390, 9, 1)
    numbers = np.repeat(np.arange(800), counts)
    heads = [BoostedTrees({"site": 400}, head=PlattScaling(), num_rounds=2) for _ in range(2)]
    heads[0].fit(logits, labels, {"site": site}, counts, weights_are="counts")
    heads[1].fit(logits[numbers], labels[numbers], {"site": site[numbers]})
    one, other = (np.asarray(head._categories) for head in heads)
    np.testing.assert_array_equal(one, other)
    assert set(range(390, 400)) <= set(one.reshape(-1).tolist())
