"""Arguments and rows that the metrics refuse, and the argument that the message names."""

import math

import numpy as np
import pytest

from keras_calibration import metrics


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        *((metrics.CalibratedLogLoss, "num_folds", value) for value in (0, 2.5)),
        *((metrics.CalibratedLogLoss, "bias_fraction", value) for value in (0.0, 1.0, math.nan)),
        *((metrics.LogLoss, "dtype", value) for value in ("float16", "bfloat16")),
        (metrics.CalibratedCategoricalLogLoss, "num_folds", 0),
        *((metrics.ExpectedCalibrationError, "num_bins", value) for value in (0, 2.5, None, "15")),
        *((metrics.FieldECE, "num_values", value) for value in (0, 2.5, "5", (5, 2))),
        (metrics.FieldECE, "num_values", 2**40),
        *((kind, "from_logits", "yes") for kind in (metrics.LogLoss, metrics.CalibratedLogLoss)),
    ],
)
def test_bad_arguments_are_refused(kind, argument, value):
    with pytest.raises(ValueError, match=argument):
        kind(**{argument: value})


@pytest.mark.parametrize("kind", [metrics.CalibratedLogLoss, metrics.CalibratedQuadraticLoss])
def test_two_ways_to_divide_the_rows_are_refused(kind):
    for num_folds in (1, 3):
        with pytest.raises(ValueError, match=r"`num_folds`.*`bias_fraction`"):
            kind(num_folds=num_folds, bias_fraction=0.5)
    assert kind(num_folds=2, bias_fraction=0.5).bias_fraction == 0.5


@pytest.mark.parametrize("epsilon", [0.0, -0.01, math.inf, math.nan])
def test_an_epsilon_that_divides_by_nothing_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        metrics.FieldRCE(3, epsilon)


TWO, TWO_CLASSES = [0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    "metric", [metrics.CalibratedLogLoss(), metrics.CalibratedQuadraticLoss(), metrics.LogLoss()]
)
@pytest.mark.parametrize(
    ("labels", "predictions", "weights", "message"),
    [
        ([0, 1, 1], TWO, None, "`y_true` must .* 3 entries for 2"),
        ([0, 1], TWO_CLASSES, None, "`y_pred` must have shape"),
        ([0, 1], TWO, [1.0, 1.0, 1.0], "`sample_weight` must .* 3 entries for 2"),
        ([[0, 1], [1, 0]], TWO, None, "`y_true` must have shape"),
        (np.zeros(6), np.full(6, 0.5), np.ones((3, 2, 1)), "shape"),
        (1, 0.5, None, "shape"),
    ],
)
def test_rows_that_do_not_align_are_refused(metric, labels, predictions, weights, message):
    with pytest.raises(ValueError, match=message):
        metric.update_state(labels, predictions, weights)


@pytest.mark.parametrize(
    ("labels", "predictions", "weights", "message"),
    [
        ([[0, 1]], TWO, None, "CalibratedLogLoss"),
        ([[1], [1]], [[0.5], [0.5]], None, "K ≥ 2"),
        ([[[0]], [[1]]], TWO_CLASSES, None, "class numbers"),
        ([0, 1], [TWO], None, "shape"),
        ([[0, 0, 1]], [TWO], None, "shape"),
        ([[0, 1]], [TWO], [1.0, 1.0], "2 entries for 1 pred"),
    ],
)
def test_rows_of_classes_that_do_not_align_are_refused(labels, predictions, weights, message):
    with pytest.raises(ValueError, match=message):
        metrics.CalibratedCategoricalLogLoss().update_state(labels, predictions, weights)


@pytest.mark.parametrize(
    ("num_values", "labels", "predictions", "field", "message"),
    [
        (3, [0, 1], TWO, None, "field=ids"),
        (3, [0, 1], TWO, [0, 1, 2], "3 field values"),
        (3, [0, 1, 1], TWO, [0, 1], "`y_true` must .* 3 entries"),
        (3, [0, 1], TWO_CLASSES, [0, 1], "`y_pred` must have shape"),
        (6, [0, 1], TWO, (np.zeros(2, int),) * 2, "4 field values"),
    ],
)
def test_fields_that_do_not_align_are_refused(num_values, labels, predictions, field, message):
    with pytest.raises(ValueError, match=message):
        metrics.FieldECE(num_values).update_state(labels, predictions, field=field)
