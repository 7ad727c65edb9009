"""The loss at class biases to second order, and the bound on what that leaves out."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from backends import FLOATS, digits, few_lengths, one_program
from keras_calibration.ops import class_bias as kernels

class_bias_sums = one_program(kernels.class_bias_sums)
best_class_bias = one_program(kernels.best_class_bias)
class_bias_loss_sum = one_program(kernels.class_bias_loss_sum)


def reference_sums(labels, logits, weights, group, num_groups):
    num_classes = logits.shape[1]
    loss = np.zeros((num_groups, 2))
    classes = np.zeros((num_groups, num_classes, 2))
    pairs = np.zeros((num_groups, num_classes, num_classes))
    for y, row, weight, number in zip(labels, logits, weights, group, strict=True):
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        loss[number] += weight * -(y @ log_softmax(row)), weight
        classes[number] += weight * np.stack([y.sum() * p, y], axis=1)
        pairs[number] += weight * y.sum() * np.outer(p, p) * (1 - np.eye(num_classes))
    return loss, classes, pairs


def loss_sum(labels, logits, weights, bias):
    return -np.sum(weights * np.sum(labels * log_softmax(logits + bias, axis=1), axis=1))


def best_bias(labels, logits, weights):
    """Newton steps on the rows themselves."""
    bias = np.zeros(logits.shape[1])
    for _ in range(20):
        p = softmax(logits + bias, axis=1)
        hessian = np.diag(weights @ p) - (weights[:, None] * p).T @ p
        bias -= np.linalg.pinv(hessian, rcond=1e-12) @ (weights @ (p - labels))
    return bias - bias.mean()


def draw(num_rows, num_classes, spread, seed=0):
    """Labels of softmax(logits), and logits moved by biases of this spread."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (num_rows, num_classes))
    labels = np.eye(num_classes)[np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)]
    moved = logits + spread * rng.normal(size=num_classes)
    return labels, moved, rng.exponential(size=num_rows)


def summary_of(labels, logits, weights, group=None, num_groups=1):
    group = np.zeros(len(labels), np.int32) if group is None else group
    sums = class_bias_sums(labels, logits, weights, group, num_groups)
    return [np.asarray(values) for values in sums]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("num_groups", [1, 3])
def test_sums_equal_the_reference(run, dtype, tolerance, num_groups):
    labels, logits, weights = draw(200, 4, 0.3)
    labels = 0.7 * labels + 0.0745  # a sum of 0.998
    group = np.random.default_rng(1).integers(0, num_groups, 200).astype(np.int32)
    rows = [array.astype(dtype) for array in (labels, logits, weights)]
    received = run(
        lambda *given: kernels.class_bias_sums(*given, num_groups),
        *rows,
        group,
        num_of_any_size=4,
    )
    expected = reference_sums(labels, logits, weights, group, num_groups)
    for got, wanted in zip(received, expected, strict=True):
        assert keras.backend.standardize_dtype(got.dtype) == dtype
        np.testing.assert_allclose(got, wanted, rtol=10 * tolerance)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_the_fit_solves_the_quadratic_problem(run, dtype, num_classes):
    labels, logits, weights = draw(500, num_classes, 0.3)
    _, classes, pairs = reference_sums(labels, logits, weights, np.zeros(500, int), 1)
    sums = [array.astype(dtype) for array in (classes, pairs)]
    bias = np.asarray(run(kernels.best_class_bias, *sums))[0]
    p = softmax(logits, axis=1)
    hessian = np.diag(weights @ p) - (weights[:, None] * p).T @ p
    expected = -np.linalg.pinv(hessian, rcond=1e-12) @ (weights @ (p - labels))
    np.testing.assert_allclose(bias, expected, rtol=0, atol={"float32": 1e-5}.get(dtype, 1e-10))
    assert abs(bias.sum()) < {"float32": 1e-6}.get(dtype, 1e-14)


# Measured, the most of six seeds: biases to 2e-3, 6e-3 and 2e-2, losses to 8e-6, 2e-5 and 1e-4.
@pytest.mark.parametrize(
    ("spread", "of_bias", "of_loss"),
    [(0.02, 3e-3, 1e-5), (0.05, 8e-3, 3e-5), (0.1, 2.5e-2, 2e-4)],
)
@pytest.mark.parametrize("seed", range(3))
def test_biases_of_the_size_of_seed_noise_are_right(spread, of_bias, of_loss, seed):
    labels, logits, weights = draw(20_000, 10, spread, seed)
    sums = summary_of(labels, logits, weights)
    bias = best_class_bias(*sums[1:])
    expected = best_bias(labels, logits, weights)
    np.testing.assert_allclose(np.asarray(bias)[0], expected, rtol=0, atol=of_bias)
    received = float(class_bias_loss_sum(*sums, bias)[0][0]) / weights.sum()
    least = loss_sum(labels, logits, weights, expected) / weights.sum()
    assert received == pytest.approx(least, abs=of_loss)


def test_passes_about_the_biases_of_the_one_before_become_exact():
    labels, logits, weights = draw(5000, 5, 0.3)
    bias = np.zeros((1, 5))
    for _ in range(4):
        sums = summary_of(labels, logits + bias, weights)
        step = best_class_bias(*sums[1:])
        bias = bias + np.asarray(step)
    expected = best_bias(labels, logits, weights)
    np.testing.assert_allclose(bias[0], expected, rtol=0, atol=digits(1e-9, of_float32=1e-4))
    received, bound = class_bias_loss_sum(*sums, step)
    least = loss_sum(labels, logits, weights, expected)
    assert float(received[0]) == pytest.approx(least, rel=digits(1e-12))
    assert float(bound[0]) < 1e-6


@settings(max_examples=60)
@given(
    few_lengths(
        st.tuples(
            st.integers(0, 2),
            st.tuples(*[st.sampled_from([-60.0, -5.0, -1.0, 0.0, 0.3, 2.0, 9.0])] * 3),
            st.sampled_from([0.0, 0.5, 1.0, 30.0]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.floats(-6, 6, width=32), min_size=3, max_size=3),
)
def test_the_error_is_within_its_bound(rows, bias):
    classes, logits, weights = (np.array(column) for column in zip(*rows, strict=True))
    labels = np.eye(3)[classes]
    bias = np.array(bias)
    sums = summary_of(labels, logits, weights)
    received, bound = class_bias_loss_sum(*sums, bias[None].astype(FLOATS[-1]))
    error = abs(float(received[0]) - loss_sum(labels, logits, weights, bias))
    rounding = digits(1e-12, of_float32=1e-5) * weights.sum() * 100
    assert error <= float(bound[0]) * (1 + digits(1e-9)) + rounding


def test_the_bound_is_close_where_the_third_moment_is_largest():
    probability = 0.5 - 1 / np.sqrt(12)
    logits = np.log([[probability, 1 - probability]])
    labels, weights, bias = np.array([[1.0, 0.0]]), np.ones(1), np.array([[0.5, -0.5]])
    received, bound = class_bias_loss_sum(*summary_of(labels, logits, weights), bias)
    error = abs(float(received[0]) - loss_sum(labels, logits, weights, bias[0]))
    assert 0.3 * float(bound[0]) < error < float(bound[0])
    # V R (3 + exp R) / 24, by hand.
    by_hand = probability * (1 - probability) * (3 + np.e) / 24
    assert float(bound[0]) == pytest.approx(by_hand, rel=digits(1e-12))


@pytest.mark.quick_cases(2)
def test_no_finite_bias_is_nan_and_no_other_group_with_it(run, dtype):
    labels, logits, weights = draw(90, 3, 0.3)
    labels[:30, 0], labels[:30, 1] = 1, 0
    labels[:30, 2] = 0
    group = np.repeat(np.arange(3, dtype=np.int32), 30)
    weights[60:] = 0
    rows = [array.astype(dtype) for array in (labels, logits, weights)]
    bias = np.asarray(
        run(
            lambda *given: kernels.best_class_bias(*kernels.class_bias_sums(*given, 3)[1:]),
            *rows,
            group,
        )
    )
    assert np.isnan(bias[[0, 2]]).all()
    assert np.isfinite(bias[1]).all()


def test_nan_stays_nan(run):
    def fit(*given):
        sums = class_bias_sums(*given, 1)
        bias = best_class_bias(*sums[1:])
        return (bias, *kernels.class_bias_loss_sum(*sums, bias))

    group = np.zeros(50, np.int32)
    for spoiled in range(3):  # labels, logits, weights
        rows = [array.astype(FLOATS[-1]) for array in draw(50, 3, 0.1)]
        rows[spoiled][7] = np.nan
        assert all(np.isnan(np.asarray(values)).all() for values in run(fit, *rows, group))


@pytest.mark.parametrize("gap", [30.0, 2000.0])
def test_saturated_probabilities_give_nan_or_a_bias_too_large(gap):
    """Every row is sure; the labels of some contradict it, so that the biases are huge."""
    labels = np.eye(3)[[0, 1, 2, 2]]
    logits = gap * np.eye(3)[[0, 1, 2, 1]]
    sums = summary_of(labels, logits, np.ones(4))
    bias = best_class_bias(*sums[1:])
    _, bound = class_bias_loss_sum(*sums, bias)
    assert not float(bound[0]) < 0.01
