"""Folds of rows: classes shared out alike."""

import numpy as np
import pytest

from keras_calibration._rows.checks import check_rows
from keras_calibration._solvers.row_folds import fold_of_rows


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
