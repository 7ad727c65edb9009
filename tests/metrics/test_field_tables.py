"""Tables by field value and the noise floor."""

import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from backends import digits, examples
from calibration_records.statistics.field_noise import drawn_field_sums, jeffreys_interval
from keras_calibration._ops.field_sums import field_sums
from keras_calibration.metrics import FieldECE, FieldRCE

RNG = np.random.default_rng(0)
FIELD = RNG.integers(-1, 8, 3000)
PREDICTIONS = RNG.beta(1, 6, 3000)
LABELS = (RNG.random(3000) < np.clip(PREDICTIONS * (0.6 + 0.2 * FIELD), 0, 1)).astype(float)
LABELS[FIELD == 2] = 0
WEIGHTS = RNG.exponential(size=3000)
WEIGHTS[FIELD == 4] = 0
FIELD[FIELD > 5] = -1


def filled(metric, labels=LABELS, predictions=PREDICTIONS, weights=None, field=FIELD):
    metric.reset_state()
    metric.update_state(labels, predictions, weights, field=field)
    return metric


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_per_field_equals_the_reference(weights, confidence):
    table = filled(FieldECE(6), weights=weights).per_field(confidence)
    w = np.ones(3000) if weights is None else weights
    place = 0
    for value in [0, 1, 2, 3, 4, 5, -1]:
        here = (value == FIELD) if value >= 0 else (FIELD < 0) | (FIELD > 5)
        if w[here].sum() == 0:
            assert value == 4
            continue
        rate = np.average(LABELS[here], weights=w[here])
        mean = np.average(PREDICTIONS[here], weights=w[here])
        count = w[here].sum() ** 2 / (w[here] ** 2).sum()
        tails = np.array([1 - confidence, 1 + confidence]) / 2
        lower, upper = special.betaincinv(count * rate + 0.5, count * (1 - rate) + 0.5, tails)
        lower = 0.0 if rate == 0 else lower
        expected = {
            "value": value,
            "rows": w[here].sum(),
            "observed_rate": rate,
            "mean_prediction": mean,
            "ratio": mean / rate if rate else math.nan,
            "residual": np.sum(w[here] * (LABELS[here] - PREDICTIONS[here])),
            "lower": lower,
            "upper": upper,
            "is_off": not lower <= mean <= upper,
        }
        row = {name: column[place] for name, column in table.items()}
        assert row == pytest.approx(expected, rel=1e-5, abs=digits(1e-9), nan_ok=True)
        place += 1
    assert {len(column) for column in table.values()} == {place}
    assert set(table["is_off"]) == {True, False}


def test_right_predictions_are_off_as_often_as_the_confidence_says():
    field = np.repeat(np.arange(4000), 50)
    labels = np.random.default_rng(1).random(200_000) < 0.2
    metric = filled(FieldECE(4000), labels, np.full(200_000, 0.2), field=field)
    assert 0.03 < np.mean(metric.per_field(0.95)["is_off"]) < 0.07
    assert np.mean(metric.per_field(0.999)["is_off"]) < 0.005


def test_one_bad_row_spoils_its_own_value_only():
    predictions = PREDICTIONS.copy()
    predictions[np.flatnonzero(FIELD == 3)[5]] = 1.5
    table = filled(FieldECE(6), predictions=predictions).per_field()
    bad = table["value"] == 3
    np.testing.assert_array_equal(np.isnan(table["mean_prediction"]), bad)
    assert not table["is_off"][bad].any()
    weights = np.ones(3000)
    weights[np.flatnonzero(FIELD == 3)[5]] = -1
    table = filled(FieldECE(6), weights=weights).per_field()
    bad = table["value"] == 3
    assert bad.sum() == 1
    for name in ("rows", "observed_rate", "lower", "upper"):
        np.testing.assert_array_equal(np.isnan(table[name]), bad)


def test_a_common_factor_of_weights_changes_no_rate():
    # The square of such a weight is 0 in float32.
    table = filled(FieldECE(6, dtype="float32"), weights=WEIGHTS * 1e-25).per_field()
    expected = filled(FieldECE(6), weights=WEIGHTS).per_field()
    for name in ("value", "observed_rate", "mean_prediction", "ratio"):
        np.testing.assert_allclose(table[name], expected[name], rtol=1e-5)


@settings(max_examples=examples(25))
@given(
    st.lists(
        st.tuples(st.floats(0, 1e7), st.floats(0, 1)).map(
            lambda pair: (pair[0] * pair[1], pair[0])
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.5, 0.95, 0.9999]),
)
def test_jeffreys_interval_holds_the_share_of_the_posterior(pairs, confidence):
    positives, trials = np.array(pairs).T
    lower, upper = jeffreys_interval(positives, trials, confidence)
    for k, n, low in zip(positives, trials, lower, strict=True):
        expected = (1 - confidence) / 2
        below = special.betainc(k + 0.5, n - k + 0.5, low)
        assert low == 0 if k <= 0 else math.isclose(below, expected, rel_tol=1e-4)
    swapped, _ = jeffreys_interval(trials - positives, trials, confidence)
    np.testing.assert_allclose(upper, 1 - swapped, atol=1e-9)


def drawn_row_by_row(metric, predictions, field, weights, num_draws, seed=1):
    rng = np.random.default_rng(seed)
    num_values = metric.num_values + 1
    rows = np.bincount(field, weights, num_values)
    predicted = np.bincount(field, weights * predictions, num_values)
    errors = []
    for _ in range(num_draws):
        drawn = weights * (rng.random(len(field)) < predictions)
        positives = np.bincount(field, drawn, num_values)
        residual = np.abs(positives - predicted)
        if isinstance(metric, FieldECE):
            errors.append(residual.sum() / rows.sum())
            continue
        kept = rows > 0
        relative = rows[kept] * residual[kept] / (positives + metric.epsilon * rows)[kept]
        errors.append(relative.sum() / rows[kept].sum())
    return np.mean(errors), np.std(errors, ddof=1)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["same", "exponential"])
def test_noise_floor_with_weights(kind):
    rng = np.random.default_rng(3)
    field = rng.integers(0, 100, 4000)
    predictions = rng.beta(1, 20, 4000)
    weights = {"same": np.full(4000, 7.0), "exponential": rng.exponential(size=4000)}[kind]
    for metric in (FieldECE(100), FieldRCE(100)):
        filled(metric, np.zeros(4000), predictions, weights, field)
        mean, deviation = metric.noise_floor(800)
        expected, expected_deviation = drawn_row_by_row(metric, predictions, field, weights, 400)
        standard_error = math.hypot(deviation / 800**0.5, expected_deviation / 400**0.5)
        slack = 0.0 if kind == "same" else 0.03 * expected
        assert mean == pytest.approx(expected, abs=4 * standard_error + slack)
        assert deviation == pytest.approx(expected_deviation, rel=0.15)


def test_predictions_of_0_and_1_leave_nothing_to_chance():
    certain = np.array([1.0, 1.0, 0.0, 0.0])
    for weights in (None, np.array([1.0, 10.0, 3.0, 0.7])):
        metric = filled(FieldECE(2), certain, certain, weights, np.array([0, 0, 0, 1]))
        assert metric.noise_floor(50) == pytest.approx((0, 0), abs=digits(1e-12))


def test_the_noise_floor_repeats_itself_and_leaves_the_state_alone():
    metric = filled(FieldRCE(6), weights=WEIGHTS)
    before = [keras.ops.convert_to_numpy(variable) for variable in metric.variables]
    assert metric.noise_floor(20) == metric.noise_floor(20) != metric.noise_floor(20, seed=1)
    for variable, value in zip(metric.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    metric.update_state([1.0], [2.0], field=[0])
    assert all(map(math.isnan, metric.noise_floor(20)))


def test_bad_arguments_of_tables_are_refused():
    for num_draws in (1, 2.5):
        with pytest.raises(ValueError, match="num_draws"):
            filled(FieldECE(6)).noise_floor(num_draws)
    for confidence in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="confidence"):
            filled(FieldECE(6)).per_field(confidence)


@settings(max_examples=examples(25))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 0.5, 1e-12, 1e-300, 0.999, 0.07]),
            st.sampled_from([0.0, 1e-3, 1.0, 1.0, 50.0]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_drawn_sums_have_the_right_mean_and_variance(rows):
    predictions, weights = np.array(rows).T
    ids = np.zeros(len(rows), int)
    sums = np.asarray(field_sums(np.zeros(len(rows)), predictions, weights, ids, 1))
    drawn = np.array(list(drawn_field_sums(sums, 1500)))
    assert np.isfinite(drawn).all()
    assert (drawn[:, 0, 1] >= -1e-9).all()
    np.testing.assert_allclose(drawn[:, 0, 2], weights.sum(), rtol=digits(1e-7))
    variance = np.sum(weights**2 * predictions * (1 - predictions))
    expected = np.sum(weights * predictions)
    error = 6 * math.sqrt(variance / 1500) + digits(1e-9) * expected
    assert drawn[:, 0, 1].mean() == pytest.approx(expected, abs=error + 1e-9)
    np.testing.assert_allclose(drawn[:, 0, 0], drawn[:, 0, 1] - expected, atol=digits(1e-9))
    if variance > 0.01 * weights.max() ** 2:
        assert drawn[:, 0, 0].var() == pytest.approx(variance, rel=0.6)
    if set(weights) == {1.0}:
        np.testing.assert_allclose(drawn[:, 0, 1], np.round(drawn[:, 0, 1]), atol=digits(1e-9))
        assert drawn[:, 0, 1].max() <= len(rows) + 1e-9
