"""The same facts, the same answer: what `calibrate_scores` may not depend on."""

import numpy as np
import pytest

import keras_calibration as kc

pytestmark = pytest.mark.slow

NUM_ROWS = 900
RNG = np.random.default_rng(0)
SCORES = np.round(RNG.normal(-1, 1.2, NUM_ROWS) * 64) / 64
SITES, PRICES = RNG.integers(0, 6, NUM_ROWS), RNG.normal(size=NUM_ROWS)
OFFSETS = np.array([-1.0, 0, 0.4, 1.0, -0.3, 0.2])
LABELS = (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-0.6 * SCORES - OFFSETS[SITES]))) * 1.0
FEATURES = {"site": SITES, "price": PRICES}
IMPORTANCES = RNG.exponential(size=NUM_ROWS)
# Candidates for scores of any unit; the others take them as logits.
METHODS = ["platt", "ilps", "field_bias", "additive", "trees"]


def calibrated(scores=SCORES, labels=LABELS, features=FEATURES, weights=None, **arguments):
    arguments = {"methods": METHODS, "from_logits": True, **arguments}
    columns = {"fields": ["site"], "numeric": ["price"], "verbose": 0}
    return kc.calibrate_scores(scores, labels, features, weights, **columns, **arguments)


def predicted(model, scores=SCORES):
    return model.predict({"score": scores, **FEATURES}, verbose=0, batch_size=NUM_ROWS)[:, 0]


@pytest.fixture(scope="module")
def expected():
    model = calibrated()
    assert len(model.report.weights) > 1
    return predicted(model), model.report


def assert_same(model, expected, scores=SCORES, accuracy=2e-6):
    probabilities, report = expected
    np.testing.assert_allclose(predicted(model, scores), probabilities, rtol=0, atol=accuracy)
    assert model.report.chosen == report.chosen
    assert model.report.after.log_loss == pytest.approx(report.after.log_loss, abs=accuracy)
    change = model.report.after.log_loss - model.report.before.log_loss
    assert change < 0


@pytest.mark.parametrize(("unit", "zero"), [(2.0**-20, 0.0), (2.0**20, 0.0), (1.0, 4.0)])
def test_unit_and_zero_of_the_score(expected, unit, zero):
    # Each method by itself is the same. "No change" is another candidate in another unit, and its
    # part in the weights of a mean is all that is left of the unit.
    model = calibrated(unit * SCORES + zero)
    assert_same(model, expected, unit * SCORES + zero, accuracy=1e-3)
    for one, other in zip(model.report.scores[1:], expected[1].scores[1:-1], strict=False):
        assert one.name == other.name
        assert one.log_loss == pytest.approx(other.log_loss, abs=1e-6)


@pytest.mark.parametrize("factor", [1 / NUM_ROWS, 1.0, 1e6])
def test_a_common_factor_of_the_weights(expected, factor):
    assert_same(calibrated(weights=np.full(NUM_ROWS, factor)), expected)


def test_order_of_rows_and_columns(expected):
    order = np.random.default_rng(1).permutation(NUM_ROWS)
    features = {"price": PRICES[order], "site": SITES[order]}
    assert_same(calibrated(SCORES[order], LABELS[order], features), expected)


def test_labels_and_scores_turned_round():
    """Folds are drawn alike; trees round in one direction, and knots where scores lie on them."""
    scores = SCORES + RNG.uniform(-0.01, 0.01, NUM_ROWS)
    methods = ["platt", "ilps", "field_bias", "additive"]
    model = calibrated(scores, methods=methods)
    turned = calibrated(-scores, 1 - LABELS, methods=methods)
    np.testing.assert_allclose(
        1 - predicted(turned, -scores), predicted(model, scores), rtol=0, atol=1e-4
    )
    assert turned.report.after.log_loss == pytest.approx(model.report.after.log_loss, abs=1e-5)
    assert turned.report.weights == pytest.approx(model.report.weights, abs=1e-3)
