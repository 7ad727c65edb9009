"""Rows that are there several times: found, and used once; rows that are equal by chance stay."""

import warnings

import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc
from keras_calibration._rows.rows import Rows
from keras_calibration.calibration.repeated_rows import distinct_rows

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-1.4, 1, 300)
SITES = RNG.integers(0, 10, 300)
LABELS = (RNG.random(300) < expit(LOGITS)).astype(float)
POINTS = np.round(RNG.normal(600, 60, 6000))  # a score in whole points
PAID = (RNG.random(6000) < expit((POINTS - 650) / 40)).astype(float)


def times(number, *columns):
    return [np.repeat(column, number, axis=0) for column in columns]


def repeated():
    """Name → inputs, labels, weights, and the number of different rows."""
    order = RNG.permutation(18_000)
    images = RNG.normal(size=(300, 4, 4)).astype("float32")
    counts = np.where(LABELS, 5, 1)
    classes = np.eye(4)[RNG.integers(0, 4, 300)]
    names = np.array(["a", "b"], object)[SITES % 2]
    mixed = np.array(["ö", "ö".encode(), None, b"\xff"], object)[SITES % 4]
    missing = np.where(SITES > 7, np.nan, LOGITS)
    return {
        "ten times": (times(10, LOGITS, SITES), *times(10, LABELS), None, 300),
        "own weights": (times(2, LOGITS), *times(2, LABELS, RNG.exponential(size=300)), 300),
        "oversampled positives": (times(counts, LOGITS), *times(counts, LABELS), None, 300),
        "points, three times": (
            [np.repeat(POINTS, 3)[order]], np.repeat(PAID, 3)[order], None, 6000,
        ),
        "a table twice": ([np.tile(POINTS, 2)], np.tile(PAID, 2), None, 6000),
        "images": (times(3, images, LOGITS), *times(3, LABELS), None, 300),
        "strings": (times(2, names, LOGITS), *times(2, LABELS), None, 300),
        "strings, bytes and none": (times(2, mixed, LOGITS), *times(2, LABELS), None, 300),
        "two strings each": (
            times(2, np.stack([names, mixed], axis=1), LOGITS), *times(2, LABELS), None, 300,
        ),
        "missing values": (times(2, missing, LOGITS), *times(2, LABELS), None, 300),
        "classes": (times(2, LOGITS), *times(2, classes), None, 300),
        "soft labels": (times(4, LOGITS), *times(4, 0.2 + 0.6 * LABELS), None, 300),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(repeated()))
def test_repeated_rows_are_used_once(name):
    inputs, labels, weights, number = repeated()[name]
    logits = next(each for each in inputs if each.dtype.kind == "f" and each.ndim == 1)
    logits = np.nan_to_num(logits) + 1e-7 * RNG.normal(size=len(labels))  # of two batches
    if labels.ndim == 2:
        logits = np.stack([logits, *np.zeros((3, len(labels)))], axis=1)
    rows = Rows(logits, labels, weights, dict(enumerate(inputs)))
    with pytest.warns(UserWarning, match=f"rows of the development set are {number:,} different"):
        found = distinct_rows(rows)
    assert len(found) == number
    assert (np.diff(found.numbers) > 0).all()
    # The sums keep their ratios, and count each different row once.
    assert np.average(found.labels[..., -1] if labels.ndim == 2 else found.labels,
                      weights=found.weights) == pytest.approx(
        np.average(labels[..., -1] if labels.ndim == 2 else labels, weights=weights)
    )  # fmt: skip
    if name not in ("oversampled positives", "own weights"):
        assert found.weights is None
    elif weights is not None:
        np.testing.assert_allclose(found.weights, weights[::2])
    else:
        assert found.row_weights.sum() == pytest.approx(found.num_effective)


def different():
    """Name → inputs and labels of rows that are equal by chance, or not at all."""
    few = RNG.integers(0, 3, 4000).astype(float)
    score = RNG.normal(-1, 1, 100_000).astype("float32")
    return {
        "no equal rows": ([LOGITS, SITES], LABELS),
        "points": ([POINTS], PAID),
        "points, few positives": ([POINTS], (RNG.random(6000) < 0.003).astype(float)),
        "points and sites": ([POINTS, RNG.integers(0, 3, 6000)], PAID),
        "three values": ([few], (RNG.random(4000) < 0.3).astype(float)),
        "three values that tell the label": ([few], (few > 1).astype(float)),
        "float32": ([score], (RNG.random(100_000) < expit(score)).astype(float)),
        "repeated inputs, other labels": (
            times(10, LOGITS), (RNG.random(3000) < expit(np.repeat(LOGITS, 10))).astype(float),
        ),
        "one row": ([LOGITS[:1]], LABELS[:1]),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(different()))
def test_rows_that_are_equal_by_chance_stay(name):
    inputs, labels = different()[name]
    rows = Rows(inputs[0].astype(float), labels, None, dict(enumerate(inputs)))
    assert distinct_rows(rows) is rows


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("folds", [3, "blocks", np.arange(300) % 4])
def test_a_repeated_table_is_calibrated_as_the_table(folds):
    options = {"fields": ["site"], "methods": ["platt", "field_bias"], "verbose": 0}
    features = {"site": SITES}
    expected = kc.calibrate_scores(
        LOGITS, LABELS, features, from_logits=True, folds=folds, **options
    )
    logits, labels, sites = times(10, LOGITS, LABELS, SITES)
    with pytest.warns(UserWarning, match=r"The 3,000 rows .* up to 10 times each.*duplicates"):
        model = kc.calibrate_scores(
            logits, labels, {"site": sites}, from_logits=True,
            folds=np.repeat(folds, 10) if isinstance(folds, np.ndarray) else folds, **options,
        )  # fmt: skip
    report = model.report
    assert report.num_rows == 300
    assert report.weights == pytest.approx(expected.report.weights)
    for score, other in zip(report.scores, expected.report.scores, strict=True):
        assert score.log_loss == pytest.approx(other.log_loss, rel=1e-6)
        assert score.log_loss_change_error == pytest.approx(other.log_loss_change_error, rel=1e-5)
    x = {"score": LOGITS, **features}
    np.testing.assert_allclose(
        model.predict(x, verbose=0), expected.predict(x, verbose=0), atol=1e-6
    )


def test_a_table_without_repeated_rows_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kc.calibrate_scores(LOGITS, LABELS, from_logits=True, methods=["platt"], verbose=0)
