"""The line by which a fit reads scores, against a line written from its formula."""

from unittest import mock

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import keras_calibration._solvers.reference_line as module
from keras_calibration._rows.checks import check_rows
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.reference_line import bins_of, class_line, reference_line


def rows_of(num_rows=4000, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1.5, num_rows)
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(0.4 - 0.7 * logits))).astype(float)
    return logits, labels, generator.integers(1, 4, num_rows).astype(float)


def line_of(logits, labels, weights=None):
    return reference_line(Rows(logits, np.asarray(labels, float), weights))


def expected_line(logits, labels, weights):
    """Platt's line with a prior of precision 10 about slope 1 of the score in half spreads."""
    repeated = np.sort(np.repeat(logits, weights.astype(int)))
    low, middle, high = (
        repeated[int(np.ceil(share * len(repeated))) - 1] for share in (0.16, 0.5, 0.84)
    )
    score = 0.0061 + 1.93 * (logits - middle) / min(high - middle, middle - low)

    def objective(theta):
        curve = theta[0] + theta[1] * score
        loss = weights @ (np.logaddexp(0, curve) - labels * curve)
        return loss + 5.0 * (theta[1] - 1) ** 2

    bias, slope = scipy.optimize.minimize(objective, [0.0, 1.0], tol=1e-12).x
    return bias + slope * score


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_it_is_platts_line_in_any_unit(unit):
    logits, labels, weights = rows_of()
    line = line_of(unit * logits - 3 * unit, labels, weights)
    received = line(unit * logits - 3 * unit)
    np.testing.assert_allclose(received, expected_line(logits, labels, weights), atol=2e-5)


def test_far_scores_do_not_move_the_bins():
    logits, labels, _ = rows_of()
    far = np.r_[logits, 1e9, -1e300]
    np.testing.assert_allclose(bins_of(far)(logits), bins_of(logits)(logits), atol=0.05)
    line = line_of(np.r_[logits, 1e9], np.r_[labels, 1.0])
    np.testing.assert_allclose(line.scale, line_of(logits, labels).scale, rtol=0.05)


scores_of_any_kind = st.one_of(
    arrays(np.float64, st.integers(1, 300), elements=st.floats(-1e308, 1e308)),
    arrays(np.float64, st.integers(1, 300), elements=st.sampled_from([0.0, -1.0, 7.0])),
)


@given(scores=scores_of_any_kind, sample_size=st.integers(1, 400))
def test_quantiles_are_those_of_numpy_whatever_the_sample_of_rows(scores, sample_size):
    with mock.patch.object(module, "_SAMPLE_SIZE", sample_size):
        quantiles = module._find_quantiles(scores, None)
    assert quantiles == np.quantile(scores, (0.16, 0.5, 0.84), method="inverted_cdf").tolist()


@pytest.mark.parametrize("order", ["by chance", "sorted", "of a period"])
def test_quantiles_of_many_rows_are_those_of_numpy(order):
    scores = np.random.default_rng(0).normal(size=300_000)
    if order == "sorted":
        scores.sort()
    elif order == "of a period":  # every row of the sample is far above the others
        scores[::6] += 1e3
    expected = np.quantile(scores, (0.16, 0.5, 0.84), method="inverted_cdf")
    assert module._find_quantiles(scores, None) == expected.tolist()


def test_weights_have_no_unit_and_rows_of_weight_0_do_not_count():
    logits, _, weights = rows_of(300)
    expected = bins_of(np.repeat(logits, weights.astype(int)))
    for factor in (1e-9, 1.0, 3.7, 1e9):
        rows = np.r_[logits, 1e5], np.r_[factor * weights, 0.0]
        assert bins_of(*rows) == pytest.approx(expected) or bins_of(*rows) == expected


@pytest.mark.parametrize(
    "logits", [np.zeros(9), np.full(9, 1e9), np.r_[np.zeros(8), 5.0], np.arange(9.0) * 1e-300]
)
def test_scores_that_hardly_differ_have_a_line(logits):
    line = line_of(logits, np.arange(9) % 2)
    assert 0 < line.scale < np.inf
    assert np.isfinite(line(logits)).all()


def test_separated_classes_and_one_class_have_a_finite_line():
    logits = np.linspace(-5, 5, 1000)
    assert 0 < line_of(logits, logits > 0.003).scale < 10
    assert 0 < line_of(logits, np.ones(1000)).scale < 10
    # A score that is turned round, or says nothing, still has logits that differ.
    assert line_of(logits, logits < 0.003).scale > 0.01


@pytest.mark.parametrize(("unit", "shift"), [(1e-6, 0.0), (1e6, 5.0), (1.0, -100.0)])
def test_class_logits_have_a_line_in_any_unit(unit, shift):
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(0, 3, (200, 4)), np.arange(200) % 4
    expected = class_line(check_rows(logits, labels))(logits)
    line = class_line(check_rows(unit * logits + shift, labels))
    np.testing.assert_allclose(line(unit * logits + shift), expected, atol=1e-7)
