import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits, examples, few_lengths
from keras_calibration.metrics import CalibrationRatio
from metric_references import counted

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-3, 2, 1001)
PREDICTIONS = 1 / (1 + np.exp(-LOGITS))
LABELS = (RNG.random(1001) < 0.2).astype(float)
WEIGHTS = RNG.exponential(size=1001)


def filled(metric, labels=LABELS, predictions=PREDICTIONS, weights=None, batch_size=1001):
    metric.reset_state()
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(
            labels[part], predictions[part], None if weights is None else weights[part]
        )
    return metric


def score(*arguments, **options):
    return float(filled(*arguments, **options).result())


def reference(labels, predictions, weights):
    if not len(labels) or np.isnan(weights).any() or (weights < 0).any():
        return math.nan
    both = np.r_[labels, predictions]
    if not ((both >= 0) & (both <= 1)).all() or not np.sum(weights * labels) > 0:
        return math.nan
    return math.fsum(weights * predictions) / math.fsum(weights * labels)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("batch_size", [64, 7, 1001])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
def test_equals_the_reference(weights, batch_size):
    expected = reference(LABELS, PREDICTIONS, np.ones(1001) if weights is None else weights)
    number = {"batch_size": batch_size, "weights": weights}
    assert score(CalibrationRatio(), **number) == pytest.approx(expected, rel=digits(1e-12))
    soft = 0.1 + 0.5 * LABELS
    expected = reference(soft, PREDICTIONS, np.ones(1001) if weights is None else weights)
    from_logits = CalibrationRatio(from_logits=True)
    assert score(from_logits, soft, LOGITS, **number) == pytest.approx(expected, rel=digits(1e-12))
    float32 = score(CalibrationRatio(), soft, PREDICTIONS.astype("float32")[:, None], **number)
    assert float32 == pytest.approx(expected, rel=digits(1e-6))


@settings(max_examples=examples(25))
@given(
    few_lengths(
        st.tuples(
            st.sampled_from([0.0, 1.0, 0.25, 0.0, 1.0] * 3 + [math.nan, -0.1, 1.1]),
            st.sampled_from([0.0, 1.0, 0.3, 1e-30] * 4 + [math.nan, 1.5, -2.0]),
            st.sampled_from([0.0, 1.0, 3.5, 1e6] * 4 + [-1.0, math.nan]),
        ),
        max_size=8,
    )
)
def test_equals_the_reference_on_any_rows(rows):
    labels, predictions, weights = np.array(rows).reshape(-1, 3).T
    received = score(CalibrationRatio(), labels, predictions, weights)
    expected = reference(*counted(labels, predictions, weights))
    assert received == pytest.approx(expected, rel=digits(1e-12), nan_ok=True)


def test_no_positives_and_no_rows_give_nan():
    assert math.isnan(float(CalibrationRatio().result()))
    assert math.isnan(score(CalibrationRatio(), np.zeros(3), np.full(3, 0.5)))
    assert math.isnan(score(CalibrationRatio(), np.ones(3), np.full(3, 0.5), np.zeros(3)))


def compiled(**options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", weighted_metrics=[CalibrationRatio()], **options)
    return model


def test_early_stopping_is_not_told_a_direction():
    assert not hasattr(CalibrationRatio(), "_direction")
    stop = keras.callbacks.EarlyStopping("val_calibration_ratio")
    x = LOGITS[:, None]
    with pytest.raises(ValueError, match="maximized or minimized"):
        compiled().fit(x, LABELS, validation_data=(x, LABELS), callbacks=[stop], verbose=0)
