import itertools
import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits, examples, few_lengths
from keras_calibration._ops.folds import hashed_uniform
from keras_calibration.metrics import CalibratedLogLoss
from metric_references import counted

MODES = [
    {"num_folds": 1},
    {"num_folds": 2},
    {"num_folds": 3},
    {"num_folds": 5, "seed": 7},
    {"bias_fraction": 0.1},
    {"bias_fraction": 0.6, "seed": 3},
]


def sigmoid(logits):
    return 0.5 * (1 + np.tanh(0.5 * logits))


def root(labels, logits, weights):
    """The bias by bisection; NaN where there is none."""
    positives, negatives = np.sum(weights * labels), np.sum(weights * (1 - labels))
    if not (positives > 0 and negatives > 0):
        return math.nan
    low, high = -100.0, 100.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        excess = np.sum(weights * (sigmoid(logits + middle) - labels))
        low, high = (low, middle) if excess > 0 else (middle, high)
    return 0.5 * (low + high)


def reference(labels, logits, weights=None, num_folds=2, bias_fraction=None, seed=0):
    labels, logits = np.asarray(labels, np.float64), np.asarray(logits, np.float64)
    weights = np.ones(len(labels)) if weights is None else weights
    uniform = np.asarray(hashed_uniform(np.arange(len(labels), dtype="int32"), seed), np.float64)
    if bias_fraction is not None:
        fits = [uniform < np.float32(bias_fraction)]
        scores = [~fits[0]]
    else:
        fold = np.floor(uniform * num_folds).astype(int)
        scores = [fold == number for number in range(num_folds)]
        fits = [~part for part in scores] if num_folds > 1 else scores
    total = 0.0
    for fit, score in zip(fits, scores, strict=True):
        bias = root(labels[fit], logits[fit], weights[fit])
        if math.isnan(bias):
            return math.nan
        shifted = logits[score] + bias
        losses = np.logaddexp(0, shifted) - labels[score] * shifted
        total += np.sum(weights[score] * losses)
    scored = np.sum(weights[np.any(scores, axis=0)])
    return total / scored if scored > 0 else math.nan


def score(labels, logits, weights=None, batch_size=None, **arguments):
    metric = CalibratedLogLoss(from_logits=True, **arguments)
    batch_size = batch_size or max(len(logits), 1)
    for start in range(0, len(logits), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(labels[part], logits[part], None if weights is None else weights[part])
    return float(metric.result())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.5, 1.5, 3001)
    labels = (rng.random(3001) < sigmoid(0.8 * logits - 0.4)).astype(np.float64)
    return labels, logits, rng.exponential(size=3001)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("case", ["plain", "weights", "soft labels"])
def test_equals_reference(rows, mode, case):
    labels, logits, weights = rows
    weights = None if case == "plain" else weights
    labels = 0.1 + 0.7 * labels if case == "soft labels" else labels
    assert score(labels, logits, weights, **mode) == pytest.approx(
        reference(labels, logits, weights, **mode), abs=digits(1e-7)
    )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_equals_reference_from_float32_probabilities(rows, mode):
    labels, logits, _ = rows
    metric = CalibratedLogLoss(**mode)
    metric.update_state(labels, sigmoid(logits).astype("float32"))
    assert float(metric.result()) == pytest.approx(
        reference(labels, logits, **mode), abs=digits(1e-6)
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mode", MODES[:5], ids=str)
def test_batch_size_changes_nothing(rows, mode):
    labels, logits, weights = (array[:150] for array in rows)
    expected = score(labels, logits, weights, **mode)
    for batch_size in (1, 7, 256):
        assert score(labels, logits, weights, batch_size, **mode) == pytest.approx(
            expected, abs=digits(1e-12)
        )


def test_bias_is_the_root_of_the_other_rows(rows):
    labels, logits, weights = rows
    metric = CalibratedLogLoss(num_folds=2, from_logits=True)
    metric.update_state(labels, logits, weights)
    fold = np.floor(2 * np.asarray(hashed_uniform(np.arange(3001, dtype="int32"), 0)))
    others = [fold == 1, fold == 0]
    expected = [root(labels[part], logits[part], weights[part]) for part in others]
    np.testing.assert_allclose(metric.bias, expected, atol=digits(1e-6))


@pytest.mark.parametrize("bias_fraction", [None, 0.3])
def test_bias_has_one_entry_a_scored_part(rows, bias_fraction):
    labels, logits, _ = rows
    metric = CalibratedLogLoss(num_folds=1, bias_fraction=bias_fraction, from_logits=True)
    metric.update_state(labels, logits)
    assert metric.bias.shape == (1,)
    assert np.isfinite(metric.bias).all()


@pytest.mark.parametrize("shift", [-3.0, 2.5])
@pytest.mark.parametrize("mode", MODES[:4], ids=str)
def test_a_constant_added_to_all_logits_changes_nothing(rows, mode, shift):
    labels, logits, weights = rows
    assert score(labels, logits + shift, weights, **mode) == pytest.approx(
        score(labels, logits, weights, **mode), abs=digits(1e-7)
    )


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_in_sample_is_never_above_the_log_loss(rows, shift):
    labels, logits, _ = rows
    log_loss = np.mean(np.logaddexp(0, logits + shift) - labels * (logits + shift))
    assert score(labels, logits + shift, num_folds=1) <= log_loss


def test_labels_in_periodic_order_do_no_harm():
    logits = np.zeros(4000)
    labels = np.tile([0.0, 1.0], 2000)
    assert score(labels, logits, num_folds=2) == pytest.approx(math.log(2), abs=2e-3)


def test_scalar_weight_and_columns(rows):
    labels, logits, weights = rows
    metric = CalibratedLogLoss(from_logits=True)
    expected = score(labels, logits)
    for y, p, w in itertools.product(
        (labels, labels[:, None]), (logits, logits[:, None]), (None, 2.5)
    ):
        metric.reset_state()
        metric.update_state(y, p, w)
        assert float(metric.result()) == pytest.approx(expected, abs=digits(1e-12))
    metric.reset_state()
    metric.update_state(labels, logits, weights[:, None])
    assert float(metric.result()) == pytest.approx(
        score(labels, logits, weights), abs=digits(1e-12)
    )


def test_weights_count_as_repeated_rows_do(rows):
    labels, logits, _ = (array[:400] for array in rows)
    counts = np.random.default_rng(1).integers(0, 4, 400)
    weighted = score(labels, logits, counts, num_folds=1)
    repeated = score(labels.repeat(counts), logits.repeat(counts), num_folds=1)
    assert weighted == pytest.approx(repeated, abs=digits(1e-10))


def test_reset_state_forgets_rows_and_row_numbers(rows):
    labels, logits, _ = rows
    metric = CalibratedLogLoss(from_logits=True)
    metric.update_state(1 - labels[:777], logits[:777])
    metric.reset_state()
    assert math.isnan(float(metric.result()))
    metric.update_state(labels, logits)
    assert float(metric.result()) == score(labels, logits)


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("weight", [1.0, 0.1, 0.3])
@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("mode", MODES[:5], ids=str)
def test_one_class_gives_nan(mode, label, weight):
    # 0.1 and 0.3 add up to other totals row by row than bin by bin.
    logits = np.random.default_rng(0).normal(size=1000)
    assert math.isnan(score(np.full(1000, label), logits, np.full(1000, weight), **mode))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_gives_nan(bad):
    logits = np.r_[np.zeros(99), bad]
    assert math.isnan(score(np.tile([0.0, 1.0], 50), logits))


def test_probabilities_of_exactly_0_and_1_stay_finite():
    rng = np.random.default_rng(0)
    probabilities = np.r_[rng.random(500), np.zeros(20), np.ones(20)].astype("float32")
    labels = np.r_[rng.random(500) < 0.5, np.zeros(20), np.ones(20)]
    metric = CalibratedLogLoss()
    metric.update_state(labels, probabilities)
    probabilities = probabilities.astype("float64")
    p, rest = np.maximum([probabilities, 1 - probabilities], 2.0**-126)
    expected = reference(labels, np.log(p) - np.log(rest))
    assert float(metric.result()) == pytest.approx(expected, abs=digits(1e-6))


hostile_rows = few_lengths(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.25]),
        st.floats(-15, 15, width=32),
        st.sampled_from([0.0, 0.1, 1.0, 2.5]),
    ),
    max_size=24,
)


@settings(max_examples=examples(60))
@given(hostile_rows, st.sampled_from(MODES))
def test_equals_reference_on_any_few_rows(rows, mode):
    labels, logits, weights = np.array(rows, np.float64).reshape(-1, 3).T
    expected = reference(*counted(labels, logits, weights), **mode)
    result = score(labels, logits, weights, **mode)
    if math.isnan(expected):
        assert math.isnan(result)
    else:
        # So few rows may need a bias far out, where the loss is steep.
        assert result == pytest.approx(expected, rel=digits(1e-6), abs=digits(1e-6))


@settings(max_examples=examples(25))
@given(hostile_rows, st.integers(1, 6))
def test_batches_change_nothing_on_any_few_rows(rows, batch_size):
    labels, logits, weights = np.array(rows, np.float64).reshape(-1, 3).T
    at_once = score(labels, logits, weights)
    in_batches = score(labels, logits, weights, batch_size)
    assert in_batches == pytest.approx(at_once, rel=digits(1e-7), abs=digits(1e-9), nan_ok=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_folds": 0}, "num_folds"),
        ({"num_folds": 2.5}, "num_folds"),
        ({"bias_fraction": 0.0}, "bias_fraction"),
        ({"bias_fraction": 1.0}, "bias_fraction"),
        ({"bias_fraction": math.nan}, "bias_fraction"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CalibratedLogLoss(**arguments)


@pytest.mark.parametrize(
    ("labels", "predictions", "weights", "message"),
    [
        ([0, 1, 1], [0.5, 0.5], None, "`y_true` must .* 3 entries for 2"),
        ([0, 1], [[0.5, 0.5], [0.5, 0.5]], None, "one probability per row"),
        ([0, 1], [0.5, 0.5], [1.0, 1.0, 1.0], "`sample_weight` must .* 3 entries for 2"),
        ([[0, 1], [1, 0]], [0.5, 0.5], None, "`y_true` must have shape"),
        (1, 0.5, None, "shape"),
    ],
)
def test_rows_that_do_not_align_are_refused(labels, predictions, weights, message):
    metric = CalibratedLogLoss()
    with pytest.raises(ValueError, match=message):
        metric.update_state(labels, predictions, weights)


def test_counts_beyond_what_float32_can_count(rows):
    labels, logits, _ = rows
    metric = CalibratedLogLoss(num_folds=1, from_logits=True)
    metric.update_state(labels, logits, 2.0**24)
    metric.update_state(1 - labels, logits)
    # In float32 the second update would leave a total of this size as it is.
    both = [np.r_[labels, 1 - labels], np.r_[logits, logits]]
    weights = np.r_[np.full(3001, 2.0**24), np.ones(3001)]
    expected = reference(*both, weights, num_folds=1)
    assert float(metric.result()) == pytest.approx(expected, abs=digits(1e-9))
    moments = metric._moments
    state = [part for part in (moments._total, moments._rest) if part is not None]
    row_count = sum(np.sum(np.asarray(part, np.float64)[:, :2]) for part in state)
    assert row_count == 3001 * (2.0**24 + 1)


def test_row_numbers_may_wrap_around(rows):
    labels, logits, _ = rows
    metric = CalibratedLogLoss(from_logits=True)
    metric._num_rows.assign(2**31 - 1000)
    metric.update_state(labels, logits)
    metric.update_state(labels, logits)
    assert float(metric.result()) == pytest.approx(score(labels, logits), abs=5e-3)


@pytest.mark.parametrize("heavy", [1.0, 1e6, 3e9])
def test_one_class_beside_a_heavy_fold_gives_nan(heavy):
    # The other fold's sums, as total less own, are then right to few digits only.
    logits = np.random.default_rng(0).normal(size=1000)
    first = np.asarray(hashed_uniform(np.arange(1000, dtype="int32"), 0)) < 0.5
    labels = np.where(first, np.arange(1000) % 3 == 0, 1.0)
    assert math.isnan(score(labels, logits, np.where(first, 0.7 * heavy, 0.1)))


def test_hold_out_is_algorithm_1_worked_by_hand():
    """Fan et al., algorithm 1: the bias from one part of the rows, the log loss of the rest."""
    uniform = keras.ops.convert_to_numpy(hashed_uniform(np.arange(40, dtype="int32"), 0))
    for_bias = uniform < 0.3
    # All logits of the first part are 0, so that its bias is the logit of its positive rate.
    labels = (np.arange(40) % 4 == 0).astype(float)
    logits = np.where(for_bias, 0.0, np.linspace(-3, 1, 40))
    positives, rows = labels[for_bias].sum(), for_bias.sum()
    assert 0 < positives < rows
    bias = math.log(positives / (rows - positives))
    losses = []
    for label, logit in zip(labels[~for_bias], logits[~for_bias], strict=True):
        probability = 1 / (1 + math.exp(-logit - bias))
        losses.append(-math.log(probability if label else 1 - probability))
    metric = CalibratedLogLoss(bias_fraction=0.3, from_logits=True)
    metric.update_state(labels, logits)
    assert metric.bias == pytest.approx(bias, abs=digits(1e-8))
    assert float(metric.result()) == pytest.approx(np.mean(losses), abs=digits(1e-9))
