"""Refusals of what no calibration can be fitted on."""

import keras
import numpy as np
import pytest

from keras_calibration.solvers.data_checks import check_rows


def test_rows_come_back_flat_in_float64():
    rows = check_rows(
        keras.ops.convert_to_tensor([[0.5], [-1.0]]),
        np.array([True, False]),
        [[2], [0]],
        both_classes=False,
    )
    for received, expected in (
        (rows.logits, [0.5, -1]),
        (rows.labels, [1, 0]),
        (rows.weights, [2, 0]),
    ):
        np.testing.assert_array_equal(received, expected)
        assert received.dtype == np.float64
    assert check_rows([1.0]).labels is None
    assert check_rows([1.0]).weights is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "empty"),
        ((np.zeros((0, 1)),), "empty"),
        ((np.zeros((3, 2)),), r"\(n,\) or \(n, 1\).* Received: logits of shape \(3, 2\)"),
        ((0.5,), r"Received: logits of shape \(\)"),
        (([0.0, np.nan, 1.0, np.inf],), "finite. Received: 2 of 4 rows.*nan in row 1"),
        (([0.0, -np.inf],), "finite. Received: 1 of 2 rows.*-inf in row 1"),
        (([0.0, 1.0], [0]), "2 logits and 1 labels"),
        (([0.0, 1.0], [0, 1], [1.0]), "2 logits and 1 weights"),
        (([0.0, 1.0], [0, 2]), r"Labels must be in \[0, 1\].*2.0 in row 1"),
        (([0.0, 1.0], [-1, 1]), r"Labels must be in \[0, 1\].*-1.0 in row 0"),
        (([0.0, 1.0], [np.nan, 1]), r"Labels must be in \[0, 1\].*nan in row 0"),
        (([0.0, 1.0], np.zeros((2, 2))), r"labels of shape"),
        (([0.0, 1.0], [0, 1], [1, -1]), "not negative.*-1.0 in row 1"),
        (([0.0, 1.0], [0, 1], [np.nan, 1]), "not negative.*nan in row 0"),
        (([0.0, 1.0], [0, 1], [0, 0]), "All sample weights are 0"),
        (([0.0, 1.0], [1, 1], None, True), "one class only.*2 rows, all labels 1"),
        (([0.0, 1.0], [0, 0], None, True), "one class only.*2 rows, all labels 0"),
        (([0.0, 1.0, 2.0], [0, 1, 1], [0.0, 0.3, 0.1], True), "one class only"),
    ],
)
def test_bad_rows_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_rows(*arguments)


def test_both_classes_may_be_soft():
    rows = check_rows([0.0, 1.0], [0.5, 0.5], None, True)
    np.testing.assert_array_equal(rows.labels, 0.5)
