"""The mergeable histogram of logits: log loss at any bias, and the bias."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_calibration import ops as kernels

NUM_BINS = 2048
CLICK_RATES = [1e-4, 0.01, 0.3, 0.5, 0.9, 0.999, 0.9999]


def sigmoid(logits):
    positive = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1, positive) / (1 + positive)


def histogram_of(logits, weights=None, group=None, num_groups=1):
    weights = np.ones_like(logits) if weights is None else weights
    group = np.zeros(len(logits), np.int32) if group is None else group
    return kernels.logit_histogram(logits, weights, group, num_groups)


def reference_histogram(logits, weights, group, num_groups):
    sums = np.zeros((num_groups, NUM_BINS, 3))
    for logit, weight, row_group in zip(
        logits.tolist(), weights.tolist(), group.tolist(), strict=True
    ):
        number = int(min(max(np.floor(logit * 64) + 1024, 0), NUM_BINS - 1))
        offset = logit - (number - 1023.5) / 64
        sums[row_group, number] += (weight, weight * offset, weight * offset**2)
    return sums


def reference_root(logits, weights, clicks):
    """Bisection of the sum of predictions, a share of the rarer class at a time."""
    low, high = -50 - logits.max(), 50 - logits.min()
    no_clicks = weights.sum() - clicks
    for _ in range(200):
        middle = (low + high) / 2
        excess = weights @ sigmoid(logits + middle) - clicks
        if clicks > no_clicks:
            excess = no_clicks - weights @ sigmoid(-logits - middle)
        low, high = (low, middle) if excess > 0 else (middle, high)
    return (low + high) / 2


def some_logits(shape, num_rows=4000):
    generator = np.random.default_rng(6)
    return {
        "one mode": generator.normal(-4, 1.5, num_rows),
        "two modes": np.r_[
            generator.normal(-9, 1, num_rows // 2), generator.normal(7, 1, num_rows // 2)
        ],
        "two far modes": np.r_[np.full(num_rows // 2, -15.0), np.full(num_rows // 2, 15.0)],
        "constant": np.full(num_rows, 2.345),
        "wide": generator.uniform(-16, 16, num_rows),
        "beyond the bins": generator.normal(0, 1e-3, num_rows) + 40,
    }[shape]


def test_histogram_equals_the_reference(run, dtype, tolerance):
    generator = np.random.default_rng(7)
    edges = np.r_[0.0, -0.0, 1 / 64, -1 / 64, 15.99, -16.0, 1e-30, -1e-30]
    logits = np.r_[generator.normal(0, 4, 800), edges].astype(dtype)
    logits = np.clip(logits, -16, 15.999)
    weights = generator.choice([0, 1, 0.5], len(logits)).astype(dtype)
    group = generator.integers(0, 3, len(logits)).astype(np.int32)
    received = run(
        lambda *rows: kernels.logit_histogram(*rows, num_groups=3),
        logits,
        weights,
        group,
        num_of_any_size=3,
    )
    assert received.dtype == dtype
    expected = reference_histogram(logits, weights, group, 3)
    np.testing.assert_allclose(received[..., 0], expected[..., 0], rtol=tolerance)
    # Offsets are at most 1/128.
    np.testing.assert_allclose(received[..., 1], expected[..., 1], atol=tolerance / 128)
    np.testing.assert_allclose(received[..., 2], expected[..., 2], atol=tolerance / 128**2)


def test_histogram_of_no_rows_is_zero(run):
    empty = np.zeros(0, np.float32)
    received = run(
        lambda *rows: kernels.logit_histogram(*rows, num_groups=2),
        empty,
        empty,
        np.zeros(0, np.int32),
        num_of_any_size=3,
    )
    np.testing.assert_array_equal(received, np.zeros((2, NUM_BINS, 3)))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.floats(-20, 20, allow_subnormal=False),
                st.sampled_from([0.0, -0.0, 1 / 64, -16.0, 16.0, 1e20, -1e30]),
            ),
            st.sampled_from([0.0, 1.0, 0.25, 7.0]),
            st.integers(0, 1),
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 30), max_size=3),
)
def test_histogram_of_the_whole_is_the_sum_over_chunks(rows, cuts):
    logits, weights = (np.array([row[place] for row in rows], np.float64) for place in range(2))
    group = np.array([row[2] for row in rows], np.int32)
    whole = histogram_of(logits, weights, group, 2)
    pieces = np.split(np.arange(len(rows)), sorted(min(cut, len(rows)) for cut in cuts))
    chunks = [histogram_of(logits[p], weights[p], group[p], 2) for p in pieces]
    np.testing.assert_allclose(np.sum(chunks, axis=0), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", ["two modes", "wide"])
def test_softplus_sum_is_right_at_any_bias(run, dtype, shape):
    logits = np.clip(some_logits(shape), -15.99, 15.99).astype(dtype)
    weights = np.random.default_rng(8).uniform(0, 2, len(logits)).astype(dtype)
    biases = np.array([-20, -3, 0, 0.01, 5, 20], dtype)
    histogram = np.repeat(histogram_of(logits, weights), len(biases), axis=0)
    received = np.asarray(run(kernels.softplus_sum, histogram, biases), np.float64)
    shifted = logits.astype(float)[:, None] + biases.astype(float)
    expected = weights.astype(float) @ np.logaddexp(0, shifted)
    if dtype == "float32":
        np.testing.assert_allclose(received, expected, rtol=1e-5)
    else:
        assert (np.abs(received - expected) <= 8e-9 * weights.sum()).all()


def test_softplus_sum_of_rows_beyond_the_bins_is_right_to_first_order(run):
    logits = np.float32([1e20, -1e20, 30, 40, -17])
    received = run(kernels.softplus_sum, histogram_of(logits[2:]), np.float32([0.5]))
    np.testing.assert_allclose(received, [30.5 + 40.5], rtol=1e-6)
    received = run(kernels.softplus_sum, histogram_of(logits[:1]), np.float32([0.5]))
    np.testing.assert_allclose(received, [1e20], rtol=1e-6)
    received = run(kernels.softplus_sum, histogram_of(logits[1:2]), np.float32([0.5]))
    np.testing.assert_array_equal(received, [0])


@pytest.mark.parametrize(
    "shape", ["one mode", "two modes", "two far modes", "constant", "wide", "beyond the bins"]
)
def test_bias_root_makes_predictions_add_up_to_labels(run, shape):
    logits = some_logits(shape)
    weights = np.random.default_rng(9).choice([0.0, 1.0, 2.5], len(logits))
    clicks = np.array(CLICK_RATES) * weights.sum()
    histogram = np.repeat(histogram_of(logits, weights), len(clicks), axis=0)
    bias = np.asarray(run(kernels.bias_root, histogram, clicks, weights.sum() - clicks))
    for received, target in zip(bias, clicks, strict=True):
        np.testing.assert_allclose(weights @ sigmoid(logits + received), target, rtol=1e-6)
        np.testing.assert_allclose(
            weights @ sigmoid(-logits - received), weights.sum() - target, rtol=1e-6
        )
        if "far" not in shape:  # there, a whole range of biases does
            expected = reference_root(logits, weights, target)
            np.testing.assert_allclose(received, expected, atol=2e-6)


def test_bias_root_in_float32(run):
    logits = some_logits("one mode").astype(np.float32)
    weights = np.ones_like(logits)
    clicks = (np.array(CLICK_RATES) * len(logits)).astype(np.float32)
    histogram = np.repeat(histogram_of(logits, weights), len(clicks), axis=0)
    no_clicks = np.float32(len(logits)) - clicks
    bias = run(kernels.bias_root, histogram, clicks, no_clicks)
    assert bias.dtype == "float32"
    for received, target in zip(np.asarray(bias), clicks, strict=True):
        expected = reference_root(logits.astype(float), weights.astype(float), float(target))
        # Σ w - Σ w y has lost digits where nearly all are clicks.
        precision = 1e-5 if target < 0.99 * len(logits) else 1e-3
        assert received == pytest.approx(expected, rel=precision, abs=precision)


def test_bias_root_of_huge_logits_is_the_same_in_every_mode(run):
    huge = (1e20, -1e30, 3e38)
    histograms = [histogram_of(np.float32([0, 1, 2, logit])) for logit in huge]
    twos = np.float32([2, 2, 2])
    bias = run(kernels.bias_root, np.concatenate(histograms), twos, twos)
    rest = np.array([0.0, 1, 2])
    expected = [reference_root(rest, np.ones(3), 2 - (logit > 0)) for logit in huge]
    np.testing.assert_allclose(bias, expected, rtol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_makes_its_group_nan_and_no_other(run, dtype, bad):
    logits = np.r_[some_logits("two modes", 1000), bad].astype(dtype)
    group = np.r_[np.zeros(1000), 1].astype(np.int32)
    histogram = histogram_of(
        np.r_[logits, np.array([0.5], dtype)], group=np.r_[group, 1].astype(np.int32), num_groups=3
    )
    # Far from the start: stopping early would show. The last group is empty.
    clicks, no_clicks = np.array([2.0, 1.0, 0.0], dtype), np.array([998.0, 1.0, 0.0], dtype)
    bias = np.asarray(run(kernels.bias_root, histogram, clicks, no_clicks))
    expected = reference_root(logits[:1000].astype(float), np.ones(1000), 2.0)
    assert bias[0] == pytest.approx(expected, rel=1e-5)
    assert np.isnan(bias[1:]).all()
    sums = np.asarray(run(kernels.softplus_sum, histogram, np.zeros(3, dtype)))
    np.testing.assert_allclose(sums[0], np.logaddexp(0, logits[:1000]).sum(), rtol=1e-5)
    assert np.isnan(sums[1])
    assert sums[2] == 0


def test_bias_root_of_one_class_or_no_rows_is_nan(run, dtype):
    logits = some_logits("one mode", 300).astype(dtype)
    histogram = np.repeat(histogram_of(logits), 5, axis=0)
    histogram[4] = 0
    clicks = np.array([0, 300, -1, 301, 0], dtype)
    no_clicks = np.array([300, 0, 301, -1, 0], dtype)
    assert np.isnan(run(kernels.bias_root, histogram, clicks, no_clicks)).all()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(-15.9, 15.9, allow_subnormal=False), st.sampled_from([0.0, 1.0, 0.1, 30.0])
        ),
        min_size=1,
        max_size=12,
    ),
    st.floats(1e-4, 0.9999),
)
def test_bias_root_of_hostile_rows(rows, rate):
    logits, weights = (np.array([row[place] for row in rows]) for place in range(2))
    total = weights.sum()
    clicks, no_clicks = tf.constant([rate * total]), tf.constant([(1 - rate) * total])
    bias = float(kernels.bias_root(histogram_of(logits, weights), clicks, no_clicks)[0])
    if not total:
        assert np.isnan(bias)
        return
    received = weights @ sigmoid(logits + bias), weights @ sigmoid(-logits - bias)
    np.testing.assert_allclose(received, (rate * total, (1 - rate) * total), rtol=1e-6)


def test_labelled_histogram_adds_the_label_sums(run, dtype):
    generator = np.random.default_rng(11)
    logits = some_logits("one mode", 500).astype(dtype)
    labels = generator.choice([0.0, 0.3, 1.0], 500).astype(dtype)
    weights = generator.choice([0.0, 1.0, 2.5], 500).astype(dtype)
    group = generator.integers(0, 3, 500).astype(np.int32)
    arguments = labels, logits, weights, group
    histogram, label_sums = run(lambda *a: kernels.labelled_histogram(*a, 4), *arguments)
    expected = run(lambda *a: kernels.logit_histogram(*a, 4), logits, weights, group)
    np.testing.assert_allclose(histogram, expected, rtol=1e-5, atol=1e-6)
    rows = [weights * labels, weights * (1 - labels), weights * labels * logits]
    for number in range(4):
        sums = [np.sum(row[group == number], dtype=np.float64) for row in rows]
        np.testing.assert_allclose(label_sums[number], sums, rtol=1e-5, atol=1e-4)
