"""One rule: predictions are probabilities, unless `from_logits=True`."""

import numpy as np
import pytest

from keras_calibration.metrics import FieldECE, FieldRCE
from keras_calibration.plots import FieldDisplay, ReliabilityDisplay
from keras_calibration.scoring import (
    calibrated_log_loss,
    field_ece,
    field_rce,
    multicalibration_error,
    score,
)

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(-1, 1.5, 400)
PROBABILITIES = 1 / (1 + np.exp(-LOGITS))
LABELS = (GENERATOR.random(400) < PROBABILITIES).astype(float)
SITE = GENERATOR.integers(0, 3, 400)


def segments(labels, predictions, **options):
    return multicalibration_error(labels, predictions, {"site": SITE}, **options).error


def bins(labels, predictions, **options):
    display = ReliabilityDisplay.from_predictions(labels, {"now": predictions}, **options)
    return display.curves["now"].predicted


def rates(labels, predictions, **options):
    display = FieldDisplay.from_predictions(labels, predictions, SITE, **options)
    return display.curves["predicted"].predicted


def by_metric(metric):
    def error(labels, predictions, from_logits=False):
        batch = (labels, predictions, None, {"site": SITE})
        site_metric = {"site": metric(3, from_logits=from_logits)}
        return next(iter(score(batch, field_metrics=site_metric, verbose=0).values()))

    return error


FUNCTIONS = {
    "calibrated_log_loss": calibrated_log_loss,
    "field_ece": lambda y, p, **options: field_ece(y, p, SITE, **options),
    "field_rce": lambda y, p, **options: field_rce(y, p, SITE, **options),
    "FieldECE": by_metric(FieldECE),
    "FieldRCE": by_metric(FieldRCE),
    "multicalibration_error": segments,
    "ReliabilityDisplay": bins,
    "FieldDisplay": rates,
}
CHECKED = ["multicalibration_error", "ReliabilityDisplay", "FieldDisplay"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_logits_give_what_their_probabilities_give(name):
    function = FUNCTIONS[name]
    expected = function(LABELS, PROBABILITIES)
    received = function(LABELS, LOGITS, from_logits=True)
    np.testing.assert_allclose(received, expected, rtol=1e-5)


@pytest.mark.parametrize("name", CHECKED)
def test_logits_without_a_word_are_an_error(name):
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\].*pass from_logits=True"):
        FUNCTIONS[name](LABELS, LOGITS)


@pytest.mark.parametrize("name", CHECKED)
def test_probabilities_given_as_logits_warn_once(name):
    with pytest.warns(UserWarning, match="looks like probabilities") as warned:
        FUNCTIONS[name](LABELS, PROBABILITIES, from_logits=True)
    assert len(warned) == 1


@pytest.mark.parametrize("name", CHECKED)
def test_few_logits_between_0_and_1_do_not_warn_and_nan_is_refused(name):
    FUNCTIONS[name](LABELS, np.where(LOGITS > 0, 0.5, 0.0), from_logits=True)
    with pytest.raises(ValueError, match="must not hold NaN"):
        FUNCTIONS[name](LABELS, np.where(LOGITS > 0, np.nan, 0.0), from_logits=True)
