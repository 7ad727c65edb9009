"""The same facts, the same answer: what no fit may depend on, for every head with a direct fit.

Unit and zero of the scores, a common factor of the weights, the order of columns, shape and dtype,
labels and logits that are both turned round, the batches of updates. (Rows, counts, rows of weight
0, the order of rows: `test_rows_or_counts`; what a row of weight 0 may hold: `test_every_door`.)
"""

import keras
import numpy as np
import pytest

from every_head import HEADS, NUM_CLASSES, NUM_SITES, has_classes
from keras_calibration import layers
from keras_calibration._rows.checks import logits_of_probabilities
from keras_calibration.layers.histogram_head import HistogramHead
from tiers import slow_except

NUM_ROWS = 600
RNG = np.random.default_rng(0)
# Whole numbers of 1/64: shifts and powers of two are then exact in float32.
LOGITS = np.round(RNG.normal(-0.5, 1.5, NUM_ROWS) * 64) / 64
SITES = RNG.integers(0, NUM_SITES, NUM_ROWS)
PRICES = RNG.normal(size=NUM_ROWS).astype("float32")
CHANCES = 1 / (1 + np.exp(-0.6 * LOGITS - 0.5 * SITES + 1 - 0.4 * PRICES))
LABELS = (RNG.random(NUM_ROWS) < CHANCES).astype("float64")
FEATURES = {"site": SITES, "price": PRICES}
CLASS_LOGITS = np.round(RNG.normal(0, 1.5, (NUM_ROWS, NUM_CLASSES)) * 64) / 64
CLASSES = np.argmax(0.6 * CLASS_LOGITS + RNG.gumbel(size=CLASS_LOGITS.shape), axis=1)
IMPORTANCES = RNG.exponential(size=NUM_ROWS)
COUNTS = RNG.integers(1, 4, NUM_ROWS)

pytestmark = pytest.mark.filterwarnings("ignore:The logits look like probabilities")


NAMES = sorted(HEADS)
# Of the others, fits take seconds. Where chance is drawn, one of them stays.
QUICK = [
    *("BetaCalibration", "BiasCorrection", "FieldBias", "FieldILPS", "ILPS", "IsotonicRegression"),
    *("PlattScaling", "TemperatureScaling", "VectorScaling"),
]
ALL_HEADS = slow_except(QUICK, NAMES)
# The splits of trees round in one direction.
NOT_MIRRORED = ("BoostedTrees",)


# Where knots meet, they make way in one direction.
TURNED_ROUND = dict.fromkeys(
    ["ILPS", "ILPS, auto", "ILPS, strict", "FieldBias, curve", "NeuralCalibration"], 1e-3
)


def with_free(unit):
    """The heads for whose fit the unit is free."""
    return [name for name in NAMES if HEADS[name][1] in (unit, "both")]


def scores_of(name):
    return CLASS_LOGITS if has_classes(name) else LOGITS


def labels_of(name):
    return CLASSES if has_classes(name) else LABELS


def probabilities_of(head, scores, features=FEATURES):
    calibrated = head(np.asarray(scores, "float32"), features)
    if len(calibrated.shape) == 2 and calibrated.shape[1] > 1:
        calibrated = keras.ops.softmax(calibrated)
    else:
        calibrated = keras.ops.sigmoid(keras.ops.reshape(calibrated, (-1,)))
    return keras.ops.convert_to_numpy(calibrated).astype("float64")


def fitted(name, scores=None, labels=None, features=FEATURES, weights=None, **arguments):
    keras.utils.set_random_seed(0)
    head = HEADS[name][0]()
    scores = scores_of(name) if scores is None else scores
    labels = labels_of(name) if labels is None else labels
    settings = layers.FitSettings(folds=2, max_epochs=2)
    head.fit(scores, labels, features, weights, settings=settings, **arguments)
    return head


_expected = {}


def expected(name):
    """The probabilities of the plain fit, computed once."""
    if name not in _expected:
        _expected[name] = probabilities_of(fitted(name), scores_of(name))
    return _expected[name]


def assert_same(received, reference, tolerance=1e-6):
    np.testing.assert_allclose(received, reference, rtol=0, atol=tolerance)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("unit", [2.0**-100, 2.0**-20, 2.0**20, 2.0**100])
@pytest.mark.parametrize("name", slow_except(QUICK, with_free("scale")))
def test_the_unit_of_the_score(name, unit):
    scores = unit * scores_of(name)
    assert_same(probabilities_of(fitted(name, scores), scores), expected(name), 2e-6)


@pytest.mark.parametrize("unit", [2.0**-100, 2.0**100])
def test_the_unit_of_a_numeric_column(unit):
    name, features = "FieldBias, curve", {"site": SITES, "price": unit * PRICES}
    head = fitted(name, features=features)
    assert_same(probabilities_of(head, LOGITS, features), expected(name))


@pytest.mark.parametrize("name", slow_except(QUICK, with_free("zero")))
def test_the_zero_of_the_score(name):
    scores = scores_of(name) + 4
    assert_same(probabilities_of(fitted(name, scores), scores), expected(name))


@pytest.mark.parametrize("name", [name for name in NAMES if HEADS[name][1] != "both"])
def test_units_that_have_a_meaning_are_said(name):
    documented = " ".join(type(HEADS[name][0]()).__doc__.split())
    assert "other probabilities" in documented or "do not, because the" in documented


@pytest.mark.parametrize("name", slow_except(QUICK, with_free("both")))
def test_one_far_score(name):
    if has_classes(name):
        pytest.skip("a far logit of a class is a certain class")
    scores, labels = np.append(LOGITS, 2e5), np.append(LABELS, 1.0)
    features = {key: np.append(column, column[:1]) for key, column in FEATURES.items()}
    received = probabilities_of(fitted(name, scores, labels, features), LOGITS)
    assert np.abs(received - expected(name)).max() < 0.15
    assert abs(received.mean() - LABELS.mean()) < 0.01


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("factor", [1 / NUM_ROWS, 1e9])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_a_common_factor_of_the_weights(name, factor):
    received = probabilities_of(fitted(name, weights=np.full(NUM_ROWS, factor)), scores_of(name))
    assert_same(received, expected(name))
    one, other = (
        probabilities_of(fitted(name, weights=scale * IMPORTANCES), scores_of(name))
        for scale in (1.0, factor)
    )
    assert_same(one, other)


@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")  # counted ones
def test_cross_fitted_logits_of_trees_are_of_the_rows_that_were_given():
    rows = np.repeat(np.arange(NUM_ROWS), COUNTS)
    features = {key: column[rows] for key, column in FEATURES.items()}
    repeated = fitted("BoostedTrees", LOGITS[rows], LABELS[rows], features).fit_summary
    counted = fitted("BoostedTrees", weights=COUNTS, weights_are="counts").fit_summary
    means = np.bincount(rows, repeated.cross_fitted_logits) / COUNTS
    np.testing.assert_allclose(counted.cross_fitted_logits, means, atol=1e-6)


UPDATED = [name for name in QUICK if issubclass(getattr(layers, name), HistogramHead)]


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("unit", [1.0, 1e-3])
@pytest.mark.parametrize("sizes", [[300], [20] * 20, [1] * 30 + [400]])
@pytest.mark.parametrize("name", UPDATED)
def test_batches_of_updates_do_not_matter(name, sizes, unit):
    """Not with importances either, whose factor is that of all rows."""
    whole = fitted(name, weights=IMPORTANCES)
    head, end = HEADS[name][0](), NUM_ROWS - sum(sizes)
    for size in (end, *sizes):
        batch = slice(end - size, end) if head.histogram is None else slice(end, end + size)
        arguments = LOGITS[batch], LABELS[batch], None, unit * IMPORTANCES[batch]
        summary = head.fit(*arguments) if head.histogram is None else head.update(*arguments)
        end = batch.stop
    assert summary.num_rows == NUM_ROWS
    # Knots lie on the bins of the first batch; a beta curve bends within them.
    tolerance = {"ILPS": 0.02, "BetaCalibration": 1e-5}.get(name, 1e-6)
    assert_same(probabilities_of(head, LOGITS), probabilities_of(whole, LOGITS), tolerance)
    assert summary.log_loss_in_sample == pytest.approx(
        whole.fit_summary.log_loss_in_sample, abs=1e-4
    )
    # The weight that a prior gives way to is that of one fit, (Σ w)² / Σ w².
    rows = head.histogram.positives + head.histogram.negatives
    assert rows == pytest.approx(IMPORTANCES.sum() ** 2 / (IMPORTANCES @ IMPORTANCES))


@pytest.mark.parametrize("name", UPDATED)
def test_updates_with_counts_are_updates_with_repeated_rows(name):
    rows = np.repeat(np.arange(NUM_ROWS), COUNTS)
    counted, repeated = HEADS[name][0](), HEADS[name][0]()
    for head in (counted, repeated):
        head.fit(LOGITS[:200], LABELS[:200])
    counted.update(LOGITS, LABELS, sample_weight=COUNTS, weights_are="counts")
    repeated.update(LOGITS[rows], LABELS[rows])
    assert_same(probabilities_of(counted, LOGITS), probabilities_of(repeated, LOGITS))
    intervals = [np.stack(head.interval(LOGITS)) for head in (counted, repeated)]
    assert_same(*intervals)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", ALL_HEADS)
def test_shape_and_dtype(name):
    scores, labels = scores_of(name), labels_of(name)
    features = {"price": PRICES.astype("float64"), "site": SITES.astype("int32")[:, None]}
    column = scores if has_classes(name) else scores.astype("float32")[:, None]
    head = fitted(name, column, labels[:, None].astype("int64"), features, np.ones((NUM_ROWS, 1)))
    assert_same(probabilities_of(head, column), expected(name))
    if not has_classes(name):
        head = fitted(name, scores.tolist(), labels > 0)
        assert_same(probabilities_of(head, scores), expected(name))


@pytest.mark.parametrize(
    "name", slow_except(QUICK, [n for n in NAMES if not has_classes(n) and n not in NOT_MIRRORED])
)
def test_labels_and_logits_turned_round(name):
    received = probabilities_of(fitted(name, -LOGITS, 1 - LABELS), -LOGITS)
    # Knots lie on edges of bins and at ranks, which round in one direction.
    has_knots = any(part in name for part in ("ILPS", "curve", "Neural", "Isotonic"))
    assert_same(1 - received, expected(name), 0.02 if has_knots else 1e-5)


@pytest.mark.quick_cases(3)
@pytest.mark.filterwarnings("ignore:.*rows have a probability of exactly 0 or 1")
@pytest.mark.parametrize(
    "name", slow_except(QUICK, [n for n in NAMES if not has_classes(n) and n != "BoostedTrees"])
)
def test_votes_and_labels_turned_round(name):
    """Votes of a forest: of some rows all, of some none, in either dtype."""
    votes = np.clip(np.round(8 / (1 + np.exp(-1.5 * LOGITS))), 0, 8) / 8
    assert 20 < min(np.sum((votes == end) & (LABELS == end)) for end in (0, 1))
    assert all(np.any((votes == end) & (LABELS == 1 - end)) for end in (0, 1))
    scores = logits_of_probabilities(votes)
    head = fitted(name, votes, from_logits=False)
    probabilities = probabilities_of(head, scores)
    turned = fitted(name, (1 - votes).astype("float32"), 1 - LABELS, from_logits=False)
    assert_same(1 - probabilities_of(turned, -scores), probabilities, TURNED_ROUND.get(name, 1e-6))


def test_weights_that_contradict_what_they_are_said_to_be():
    head = layers.PlattScaling()
    with pytest.raises(ValueError, match=r"weights_are=\"counts\".* 0\.5\..*importance"):
        head.fit(LOGITS, LABELS, sample_weight=np.full(NUM_ROWS, 0.5), weights_are="counts")
    with pytest.raises(ValueError, match=r"`weights_are`.*'rows'"):
        head.fit(LOGITS, LABELS, sample_weight=COUNTS, weights_are="rows")
    with pytest.warns(UserWarning, match=r"look like counts.*weights_are=\"counts\""):
        head.fit(LOGITS, LABELS, sample_weight=COUNTS)
    with pytest.warns(UserWarning, match="label alone: 10 for negatives, 1 for"):
        head.fit(LOGITS, LABELS, sample_weight=np.where(LABELS == 1, 1, 10))
    head.fit(LOGITS, LABELS, sample_weight=IMPORTANCES)
    head.fit(LOGITS, LABELS, sample_weight=np.full(NUM_ROWS, 1000))
    head.fit(LOGITS, LABELS, sample_weight=COUNTS, weights_are="counts")
