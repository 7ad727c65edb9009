"""Rows that are there several times: told, and in one fold; rows equal by chance are as any."""

import contextlib

import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.repeated_rows import copies, with_copies_grouped
from keras_calibration._solvers.row_folds import fold_of_rows

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-1.4, 1, 300)
SITES = RNG.integers(0, 10, 300)
LABELS = (RNG.random(300) < expit(LOGITS)).astype(float)
POINTS = np.round(RNG.normal(600, 60, 6000))  # a score in whole points
PAID = (RNG.random(6000) < expit((POINTS - 650) / 40)).astype(float)


def times(number, *columns):
    return [np.repeat(column, number, axis=0) for column in columns]


def repeated():
    """Name → inputs and labels of 300 different rows."""
    images = RNG.normal(size=(300, 4, 4)).astype("float32")
    counts = np.where(LABELS, 5, 1)
    mixed = np.array(["ö", "ö".encode(), None, b"\xff"], object)[SITES % 4]
    return {
        "ten times": (times(10, LOGITS, SITES), *times(10, LABELS)),
        "oversampled positives": (times(counts, LOGITS), *times(counts, LABELS)),
        "images": (times(3, images, LOGITS), *times(3, LABELS)),
        "strings, bytes and none": (times(2, mixed, LOGITS), *times(2, LABELS)),
        "missing values": (
            times(2, np.where(SITES > 7, np.nan, LOGITS), LOGITS), *times(2, LABELS),
        ),
        "classes": (times(2, LOGITS), *times(2, np.eye(4)[RNG.integers(0, 4, 300)])),
        "soft labels": (times(4, LOGITS), *times(4, 0.2 + 0.6 * LABELS)),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(repeated()))
def test_repeated_rows_lie_in_one_fold(name):
    inputs, labels = repeated()[name]
    logits = next(
        column for column in reversed(inputs) if column.dtype.kind == "f" and column.ndim == 1
    )
    order = RNG.permutation(len(labels))
    noise = 1e-9 * RNG.normal(size=len(labels))  # of two batches
    scores = logits + noise
    if labels.ndim == 2:
        scores = np.stack([scores, *np.zeros((3, len(labels)))], axis=1)
    rows = Rows(scores, labels, None, dict(enumerate(inputs))).take(order)
    with pytest.warns(UserWarning, match="300 different rows"):
        rows = with_copies_grouped(rows)
    group = rows.groups
    _, place = np.unique(logits[order], return_inverse=True)
    assert len(np.unique(group)) == 300
    assert len({*zip(group.tolist(), place.tolist(), strict=True)}) == 300
    fold = fold_of_rows(3, rows, seed=0)
    assert len({*zip(fold.tolist(), place.tolist(), strict=True)}) == 300
    assert np.bincount(fold).min() > len(labels) / 5


def different():
    """Name → inputs and labels of rows that are equal by chance, or not at all."""
    few = RNG.integers(0, 3, 4000).astype(float)
    score = RNG.normal(-1, 1, 100_000).astype("float32")
    return {
        "no equal rows": ([LOGITS, SITES], LABELS),
        "points": ([POINTS], PAID),
        "points, few positives": ([POINTS], (RNG.random(6000) < 0.003).astype(float)),
        "points and sites": ([POINTS, RNG.integers(0, 3, 6000)], PAID),
        "three values that tell the label": ([few], (few > 1).astype(float)),
        "one value": ([np.zeros(300), SITES], LABELS),
        "float32": ([score], (RNG.random(100_000) < expit(score)).astype(float)),
        "repeated inputs, other labels": (
            times(10, LOGITS), (RNG.random(3000) < expit(np.repeat(LOGITS, 10))).astype(float),
        ),
        "one row": ([LOGITS[:1]], LABELS[:1]),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(different()))
def test_rows_that_are_equal_by_chance_are_as_any(name):
    inputs, labels = different()[name]
    assert copies(Rows(inputs[0].astype(float), labels, None, dict(enumerate(inputs)))) is None


@pytest.mark.parametrize(
    ("folds", "is_coarse"),
    [
        *((None, False), (3, True), ("blocks", False)),
        *(
            pytest.param(folds, is_coarse, marks=pytest.mark.slow)
            for folds, is_coarse in ((None, True), (3, False), ("blocks", True))
        ),
    ],
)
def test_rows_that_are_counted_are_the_repeated_rows(folds, is_coarse):
    """The same facts, the same answer: to the last bit, also where rows are equal by chance."""
    logits = np.round(LOGITS) if is_coarse else LOGITS
    counts = RNG.integers(1, 8, 300)
    options = {
        "from_logits": True, "fields": ["site"], "folds": folds, "methods": ["platt", "field_bias"],
        "verbose": 0,
    }  # fmt: skip
    rows = np.repeat(np.arange(300), counts)
    order = rows if folds == "blocks" else RNG.permutation(rows)
    models = []
    for numbers, weights in ((np.arange(300), counts), (order, None)):
        columns = logits[numbers], LABELS[numbers], {"site": SITES[numbers]}, weights
        told = pytest.warns(UserWarning, match=r"up to \d+ times.*duplicates")
        with contextlib.nullcontext() if is_coarse else told:
            models.append(kc.calibrate_scores(*columns, weights_are="counts", **options))
    counted, single = models
    assert counted.report.num_rows == len(rows)
    assert counted.report.weights == single.report.weights
    for one, other in zip(counted.report.scores, single.report.scores, strict=True):
        for name in ("log_loss", "log_loss_change_error", "auc", "field_ece"):
            assert getattr(one, name) == getattr(other, name)
    x = {"score": LOGITS, "site": SITES}
    np.testing.assert_array_equal(counted.predict(x, verbose=0), single.predict(x, verbose=0))


def test_categories_are_learnt_although_their_rows_are_equal():
    """Rows of one site and score are independent: each in a fold of its own would teach nothing."""
    site = RNG.integers(0, 10, 4000)
    labels = (RNG.random(4000) < expit(-1 + np.linspace(-1, 1, 10)[site])).astype(float)
    report = kc.calibrate_scores(
        np.full(4000, -1.0), labels, {"site": site}, from_logits=True, fields=["site"],
        methods=["bias", "field_bias"], verbose=0,
    ).report  # fmt: skip
    assert report.weights.get("field_bias", 0.0) > 0.9
    assert report.after.log_loss_change < -0.02
