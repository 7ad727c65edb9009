"""Folds of rows: classes and rows of weight 0 shared out alike."""

import numpy as np
import pytest

from keras_calibration._rows.class_rows import check_class_rows
from keras_calibration._rows.data_checks import Rows
from keras_calibration._solvers.row_folds import fold_of_rows


@pytest.mark.parametrize("has_classes", [False, True])
def test_classes_and_weights_are_shared_out(has_classes):
    generator = np.random.default_rng(0)
    labels = (
        generator.choice(3, 600, p=[0.7, 0.25, 0.05]) if has_classes else np.arange(600) % 9 < 2
    )
    weights = generator.integers(0, 2, 600)
    rows = Rows(np.zeros(600), labels.astype(float), weights)
    if has_classes:
        checked = check_class_rows(np.zeros((600, 3)), labels, weights, keep_all=True)
        rows = Rows(checked.logits, checked.labels, checked.weights)
    fold = fold_of_rows(4, rows, seed=0)
    for label in np.unique(labels):
        for weight in (0, 1):
            counts = np.bincount(fold[(labels == label) & (weights == weight)], minlength=4)
            assert np.ptp(counts) <= 1
    assert not np.array_equal(fold, fold_of_rows(4, rows, seed=1))


def test_class_rows_of_weight_0_are_kept_where_asked_for():
    logits, labels, weights = np.eye(3), [0, 1, 2], [1.0, 0.0, 2.0]
    rows = check_class_rows(logits, labels, weights, keep_all=True)
    np.testing.assert_array_equal(rows.logits, logits[[0, 0, 2]])
    np.testing.assert_array_equal(rows.weights, weights)
    np.testing.assert_array_equal(check_class_rows(logits, labels, weights).weights, [1, 2])
    with pytest.raises(ValueError, match=r"one class only.*all labels 2"):
        check_class_rows(logits, labels, [0.0, 0.0, 1.0], keep_all=True)
