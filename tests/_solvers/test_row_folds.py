"""Folds of rows: classes shared out alike."""

import numpy as np
import pytest

from keras_calibration._rows.checks import check_rows
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.row_folds import fold_of_rows, weights_in_folds


@pytest.mark.parametrize("has_classes", [False, True])
def test_classes_are_shared_out(has_classes):
    generator = np.random.default_rng(0)
    labels = (
        generator.choice(3, 600, p=[0.7, 0.25, 0.05]) if has_classes else np.arange(600) % 9 < 2
    )
    rows = check_rows(np.zeros((600, 3) if has_classes else 600), labels)
    fold = fold_of_rows(4, rows, seed=0)
    for label in np.unique(labels):
        assert np.ptp(np.bincount(fold[labels == label], minlength=4)) <= 1
    assert not np.array_equal(fold, fold_of_rows(4, rows, seed=1))


RNG = np.random.default_rng(0)
SIZES = np.append(RNG.geometric(0.3, 200), 300)  # many small groups, and one of a quarter
GROUP = np.repeat(np.arange(201), SIZES)
NUM_ROWS = len(GROUP)
LABELS = (RNG.random(NUM_ROWS) < np.repeat(RNG.beta(0.5, 1.5, 201), SIZES)).astype(float)
LOGITS = np.round(RNG.normal(size=NUM_ROWS), 1)  # some rows of two groups are equal


def rows_with(groups, order=slice(None), weights=None):
    return Rows(LOGITS[order], LABELS[order], weights, groups=np.asarray(groups)[order])


@pytest.mark.parametrize("num_folds", [2, 3, 5])
def test_a_group_lies_in_one_fold_and_the_folds_are_alike(num_folds):
    fold = fold_of_rows(num_folds, rows_with(GROUP), seed=0)
    assert len(np.unique(np.stack([GROUP, fold]), axis=1).T) == 201
    largest = max(300, NUM_ROWS / num_folds)
    for label in (0, 1):
        counts = np.bincount(fold[LABELS == label], minlength=num_folds)
        others = np.delete(counts, fold[-1])
        assert np.ptp(others) <= 3
        assert counts.max() <= largest


def test_folds_of_groups_depend_on_neither_names_nor_order():
    fold = fold_of_rows(3, rows_with(GROUP), seed=0)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(NUM_ROWS)
        names = np.random.default_rng(seed).permutation(201)[GROUP]
        other = fold_of_rows(3, rows_with(names, order), seed=0)
        # Groups of equal rows may change places.
        pairs = np.stack([LOGITS[order], LABELS[order], other]), np.stack([LOGITS, LABELS, fold])
        np.testing.assert_array_equal(*(pair[:, np.lexsort(pair)] for pair in pairs))


def test_counted_rows_of_a_group_are_its_rows():
    counts = np.random.default_rng(1).integers(1, 4, NUM_ROWS)
    again = np.repeat(np.arange(NUM_ROWS), counts)
    counted = fold_of_rows(3, rows_with(GROUP, weights=counts.astype(float)), seed=0)
    np.testing.assert_array_equal(fold_of_rows(3, rows_with(GROUP, again), seed=0), counted[again])
    weights = weights_in_folds(3, rows_with(GROUP, weights=counts.astype(float)))
    np.testing.assert_array_equal(weights, counts * (counted == np.arange(3)[:, None]))


def test_groups_of_one_row_are_no_groups():
    alone = fold_of_rows(3, rows_with(np.arange(NUM_ROWS)), seed=0)
    np.testing.assert_array_equal(alone, fold_of_rows(3, rows_with(np.full(NUM_ROWS, -1)), seed=0))


def test_fewer_groups_than_folds_are_refused():
    with pytest.raises(ValueError, match=r"`folds`.*groups, 2"):
        fold_of_rows(3, rows_with(np.arange(NUM_ROWS) % 2), seed=0)


@pytest.mark.parametrize(
    "folds",
    [np.arange(NUM_ROWS) % 2.0, np.arange(NUM_ROWS - 1) % 2, np.zeros(NUM_ROWS, int), 1, "weeks"],
    ids=["fractions", "too few", "one fold", "a single one", "an unknown name"],
)
def test_what_are_no_folds_is_refused(folds):
    with pytest.raises(ValueError, match="Argument `folds` must be"):
        fold_of_rows(folds, rows_with(np.arange(NUM_ROWS)), seed=0)
