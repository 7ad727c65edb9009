"""A warning points to the line of the program that caused it, however deep it was found."""

import inspect
import warnings

import numpy as np
import pytest

import keras_calibration as kc

LOGITS = np.linspace(-2, 2, 200, dtype="float32")
LABELS = (np.arange(200) % 2).astype("float32")


def metric_of_no_rows():
    metric = kc.metrics.CalibratedLogLoss()
    return metric.result(), inspect.currentframe().f_lineno


def logits_that_rank_backwards():
    return kc.layers.PlattScaling().fit(-LOGITS, LOGITS > 0), inspect.currentframe().f_lineno


def probabilities_for_logits():
    unfit = kc.layers.FieldBias({"site": 3})
    sites = {"site": np.arange(200) % 3}
    return unfit.fit(LOGITS / 10 + 0.5, LABELS, sites), inspect.currentframe().f_lineno


def scores_of_another_model():
    scores = 1 / (1 + np.exp(-LOGITS))
    options = {"from_logits": True, "methods": "platt"}
    return kc.calibrate_scores(scores, LABELS, **options), inspect.currentframe().f_lineno


PROGRAMS = (
    *(metric_of_no_rows, logits_that_rank_backwards),
    *(probabilities_for_logits, scores_of_another_model),
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_warning_points_to_the_users_line(program):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, line = program()
    ours = [warning for warning in caught if issubclass(warning.category, UserWarning)]
    assert {(warning.filename, warning.lineno) for warning in ours} == {(__file__, line)}
