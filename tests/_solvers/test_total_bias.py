"""The bias of a total: beside Brent's method, over hostile logits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from scipy.special import expit, softmax

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.total_bias import bias_of_mean, bias_of_total


@given(
    seed=st.integers(0, 1000),
    centre=st.floats(-15, 15),
    spread=st.sampled_from([0.0, 1e-6, 1.0, 30.0]),
    factor=st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_the_bias_is_that_of_brents_method(seed, centre, spread, factor):
    rng = np.random.default_rng(seed)
    logits = rng.normal(centre, spread, 60)
    labels = rng.uniform(0.01, 0.99, 60)
    weights = rng.exponential(size=60) * factor
    shares = weights / weights.sum()

    def difference(bias):
        return shares @ expit(logits + bias) - shares @ labels

    (received,) = bias_of_total(logits, Rows(logits, labels, weights))
    assert received == pytest.approx(optimize.brentq(difference, -300, 300, xtol=1e-12), abs=1e-8)
    assert abs(difference(received)) < 1e-10


@given(seed=st.integers(0, 1000), spread=st.sampled_from([0.1, 2.0, 10.0]))
def test_the_biases_of_classes_give_all_totals(seed, spread):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (200, 4)) - [0, 1, 2, 6]
    labels = rng.dirichlet([2, 1, 1, 0.1], 200)
    weights = rng.exponential(size=200)
    biases = bias_of_total(logits, Rows(logits, labels, weights))
    predicted = weights @ softmax(logits + biases, axis=1)
    np.testing.assert_allclose(predicted, weights @ labels, rtol=1e-8)
    assert biases.sum() == pytest.approx(0, abs=1e-9)


def test_a_class_without_rows_ends_far_below_the_others():
    logits, labels = np.zeros((30, 3)), np.eye(3)[np.arange(30) % 2]
    biases = bias_of_total(logits, Rows(logits, labels, None))
    assert np.isfinite(biases).all()
    assert softmax(biases)[2] < 1e-9
    assert softmax(biases)[:2] == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_mean_gets_the_total_of_the_labels_or_of_its_parts():
    rng = np.random.default_rng(0)
    columns = rng.normal(-3, 1.5, (2, 500))
    labels = (rng.random(500) < 0.1).astype(float)
    rows, weights = Rows(columns[0], labels, None), np.array([0.3, 0.7])
    mean = weights @ columns
    of_labels = bias_of_mean(weights, columns, rows)
    assert expit(mean + of_labels).sum() == pytest.approx(labels.sum(), rel=1e-10)
    of_parts = bias_of_mean(weights, columns, rows, is_of_parts=True)
    expected = weights @ expit(columns).sum(axis=1)
    assert expit(mean + of_parts).sum() == pytest.approx(expected, rel=1e-10)
    assert of_parts > 0


@pytest.mark.parametrize("shift", [-20.0, -40.0, -60.0])
def test_the_total_of_a_class_that_was_hardly_predicted_is_right(shift):
    rng = np.random.default_rng(0)
    logits = rng.normal([0.0, 0.0, shift], 1.0, (300, 3))
    labels = np.eye(3)[rng.integers(0, 3, 300)]
    biases = bias_of_total(logits, Rows(logits, labels, None))
    predicted = softmax(logits + biases, axis=1).mean(axis=0)
    np.testing.assert_allclose(predicted, labels.mean(axis=0), rtol=1e-8)
