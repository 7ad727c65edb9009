import keras
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits, examples, few_lengths, one_program
from keras_calibration._ops import affine_correction as kernels
from keras_calibration._ops import logit_moments as moments

fit_correction = one_program(kernels.fit_correction)
log_loss_sum = one_program(moments.log_loss_sum)
logit_moments = one_program(lambda *rows: moments.by_group(moments.logit_moments(*rows)))


def loss(scale, bias, logits, labels, weights):
    """Mean log loss of the rows themselves."""
    shifted = scale * logits + bias
    return np.average(np.logaddexp(0, shifted) - labels * shifted, weights=weights)


def reference(logits, labels, weights, correction):
    """Scale, bias and loss by minimisation on the rows."""
    free = {"bias": [1], "temperature": [0], "platt": [0, 1]}[correction]

    def objective(values):
        parameters = np.array([1.0, 0.0])
        parameters[free] = values
        return loss(*parameters, logits, labels, weights)

    start = np.array([1.0, 0.0])[free]
    found = scipy.optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-9})
    parameters = np.array([1.0, 0.0])
    parameters[free] = found.x
    return *parameters, found.fun


def summary(logits, labels, weights, group=None, num_groups=1):
    group = np.zeros(len(logits), "int32") if group is None else group
    sums = logit_moments(labels, logits, weights, group, num_groups)
    return keras.ops.convert_to_numpy(sums)


def some_rows(positive_rate, num_rows=20_000, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.4, num_rows)
    true = 0.7 * logits + np.log(positive_rate / (1 - positive_rate))
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(-true))).astype(float)
    return logits, labels, generator.choice([0.5, 1.0, 3.0], num_rows)


RATES = (0.001, 0.03, 0.5, 0.9)


@pytest.fixture(scope="module")
def rows_of_each_rate():
    """Rows of every click rate, and their summaries."""
    rows = [some_rows(rate) for rate in RATES]
    return rows, np.concatenate([summary(*each) for each in rows])


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("correction", ["bias", "temperature", "platt"])
def test_the_fit_is_that_of_the_rows(run, correction, rows_of_each_rate):
    rows, summaries = rows_of_each_rate
    scale, bias = run(lambda given: kernels.fit_correction(given, correction), summaries)
    sums = np.asarray(log_loss_sum(summaries, bias, scale))
    for number, each in enumerate(rows):
        *expected, expected_loss = reference(*each, correction)
        received = [scale[number], bias[number]]
        np.testing.assert_allclose(received, expected, atol=digits(2e-5, 1e-3))
        assert sums[number] / each[2].sum() == pytest.approx(expected_loss, abs=digits(1e-8))


def test_groups_are_fitted_apart_and_a_bad_one_is_nan():
    logits, labels, weights = some_rows(0.1, 4000)
    group = np.repeat([0, 1, 2, 3], 1000).astype("int32")
    labels[group == 1] = 1
    logits[2500] = np.nan
    summaries = summary(logits, labels, weights, group, 5)
    for correction in ("temperature", "platt"):
        scale, bias = fit_correction(summaries, correction)
        assert np.isnan(scale[1])
        assert np.isnan(scale[2])
        assert np.isnan(bias[4])
        for number in (0, 3):
            rows = group == number
            expected = reference(logits[rows], labels[rows], weights[rows], correction)
            assert float(scale[number]) == pytest.approx(expected[0], abs=2e-4)
            assert float(bias[number]) == pytest.approx(expected[1], abs=2e-4)


def test_separated_labels_have_no_platt_scaling():
    logits = np.linspace(-3, 3, 200)
    summaries = summary(logits, (logits > 0.5).astype(float), np.ones(200))
    scale, bias = fit_correction(summaries, "platt")
    assert np.isnan(scale[0])
    assert np.isnan(bias[0])


def test_a_step_that_overshoots_is_halved():
    rows = np.array([-20.0, 0.0, 20.0]), np.array([1.0, 0.0, 1.0]), np.array([1.0, 100.0, 100.0])
    scale, bias = fit_correction(summary(*rows), "platt")
    *expected, _ = reference(*rows, "platt")
    received = [float(scale[0]), float(bias[0])]
    np.testing.assert_allclose(received, expected, atol=digits(1e-4, 1e-3))


def test_one_logit_for_all_leaves_the_scale_alone():
    summaries = summary(np.full(10, 0.7), np.r_[np.ones(3), np.zeros(7)], np.ones(10))
    scale, bias = fit_correction(summaries, "platt")
    assert float(scale[0] * 0.7 + bias[0]) == pytest.approx(np.log(3 / 7), abs=digits(1e-8))


@settings(max_examples=examples(20))
@given(
    few_lengths(
        st.tuples(st.floats(-12, 12), st.sampled_from([0.0, 0.3, 1.0]), st.floats(0.1, 9)),
        min_size=3,
        max_size=15,
    )
)
def test_hostile_rows_are_no_worse_than_without_correction(rows):
    logits, labels, weights = np.array(rows).T
    summaries = summary(logits, labels, weights)
    before = loss(1, 0, logits, labels, weights)
    for correction in ("bias", "temperature", "platt"):
        scale, bias = fit_correction(summaries, correction)
        sums = log_loss_sum(summaries, bias, scale)
        received = float(sums[0]) / weights.sum()
        assert np.isnan(received) or received <= before + digits(1e-7)
        if not np.isnan(received):
            expected = loss(float(scale[0]), float(bias[0]), logits, labels, weights)
            # The documented bound, and what the fit leaves.
            bound = 1.4e-9 * max(1, abs(float(scale[0]))) ** 6
            assert received == pytest.approx(expected, abs=digits(1e-8) + bound)
