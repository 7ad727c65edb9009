"""The mergeable summary of labelled logits: log loss at any bias, and the best bias."""

import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit as sigmoid

import metric_references
from backends import digits, examples, few_lengths, on_a_gpu, one_program
from keras_calibration._ops import logit_moments as kernels

# As on a CPU and as on a GPU; functions of their own, as JAX remembers what it has traced.
bias_roots = [one_program(lambda summary: kernels.bias_root(summary)) for _ in (False, True)]

NUM_BINS = 418
RATES = [1e-4, 0.01, 0.3, 0.5, 0.9, 0.999, 0.9999]


def summary_of(logits, labels=0.0, weights=None, group=None, num_groups=1):
    weights = np.ones_like(logits) if weights is None else weights
    labels = np.full_like(weights, labels) if np.isscalar(labels) else labels
    group = np.zeros(len(logits), np.int32) if group is None else group
    sums = one_program(sums_by_group)(labels, logits, weights, group, num_groups)
    return keras.ops.convert_to_numpy(sums)


def loss_of(summary, bias):
    return kernels.log_loss_and_weight(summary, bias)[0]


log_loss_sum = one_program(loss_of)


def sums_by_group(*rows):
    return kernels.by_group(kernels.logit_moments(*rows))


def with_rates(logits, weights, rates):
    """One summary for each positive rate: soft labels, the same for all rows."""
    labels, group = (np.repeat(v, len(logits)) for v in (rates, np.arange(len(rates))))
    logits, weights = (np.tile(v, len(rates)) for v in (logits, weights))
    return summary_of(logits, labels, weights, group.astype(np.int32), len(rates))


def reference_root(logits, weights, rate):
    """Bisection of the sum of predictions, a share of the rarer class at a time."""
    low, high = -50 - logits.max(), 50 - logits.min()
    positives, negatives = rate * weights.sum(), (1 - rate) * weights.sum()
    for _ in range(64):
        middle = (low + high) / 2
        excess = weights @ sigmoid(logits + middle) - positives
        if rate > 0.5:
            excess = negatives - weights @ sigmoid(-logits - middle)
        low, high = (low, middle) if excess > 0 else (middle, high)
    return (low + high) / 2


def some_logits(shape, num_rows=4000):
    generator, half = np.random.default_rng(6), num_rows // 2
    return {
        "one mode": generator.normal(-4, 1.5, num_rows),
        "two modes": np.r_[generator.normal(-9, 1, half), generator.normal(7, 1, half)],
        "two far modes": np.repeat([-15.0, 15.0], half),
        "constant": np.full(num_rows, 2.345),
        "edges of bins": np.floor(generator.normal(-4, 1.5, num_rows) * 4) / 4
        + generator.choice([0, 0.25 * (1 - 1e-9)], num_rows),
        "wide": generator.uniform(-15.7, 15.7, num_rows),
        "beyond the bins": generator.normal(0, 1e-3, num_rows) + 40,
    }[shape]


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("as_on_gpu", [False, True])
def test_summary_equals_the_reference(run, dtype, tolerance, as_on_gpu, monkeypatch):
    on_a_gpu(monkeypatch, as_on_gpu)
    generator = np.random.default_rng(7)
    edges = np.r_[0.0, -0.0, 1 / 4, -1 / 4, 15.99, -16.0, 16.0, 1e-30, -1e-30, 16.5, -88.0, 88.0]
    beyond = np.r_[87.9, -88.1, 100.0, -1000.0, np.nextafter(np.float32(16.5), np.float32(0))]
    logits = np.r_[generator.normal(0, 4, 400), generator.normal(0, 40, 400), edges, beyond]
    logits = logits.astype(dtype)
    labels = generator.choice([0, 0.3, 1], len(logits)).astype(dtype)
    weights = generator.choice([0, 1, 0.5], len(logits)).astype(dtype)
    group = generator.integers(0, 3, len(logits)).astype(np.int32)

    def moments_of_three(*rows):
        return kernels.by_group(kernels.logit_moments(*rows, num_groups=3))

    received = run(moments_of_three, labels, logits, weights, group, num_of_any_size=4)
    assert received.dtype == dtype
    expected = metric_references.logit_moments(labels, logits, weights, group, 3)
    np.testing.assert_allclose(received, expected, rtol=tolerance, atol=tolerance)
    none = (rows[:0] for rows in (labels, logits, weights, group))
    np.testing.assert_array_equal(run(moments_of_three, *none, num_of_any_size=4), 0)


@pytest.mark.quick_cases(4)
def test_log_loss_is_right_at_any_bias(run, dtype):
    for shape in ("two modes", "wide", "edges of bins"):
        logits = some_logits(shape).astype(dtype)
        generator = np.random.default_rng(8)
        weights = generator.uniform(0, 2, len(logits)).astype(dtype)
        labels = generator.choice([0, 0.3, 1], len(logits)).astype(dtype)
        biases = np.array([-20, -3, 0, 0.01, 5, 20], dtype)
        summary = np.repeat(summary_of(logits, labels, weights), len(biases), axis=0)
        received = run(kernels.log_loss_and_weight, summary, biases)
        losses, totals = (np.asarray(sums, np.float64) for sums in received)
        np.testing.assert_allclose(totals, weights.sum(dtype=float), rtol=1e-5)
        shifted = logits.astype(float)[:, None] + biases.astype(float)
        exact = np.logaddexp(0, shifted) - labels.astype(float)[:, None] * shifted
        expected = weights.astype(float) @ exact
        if dtype == "float32":
            np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=shape)
        else:
            # The documented bound, at its largest where all rows are near 0.
            bound = np.exp(1 / 8) / 4 / 8**6 / (2**5 * 720) + 1e-13
            assert (np.abs(losses - expected) <= bound * weights.sum()).all(), shape


def test_loss_of_rows_beyond_the_bins_is_right_to_first_order(run):
    def loss(*logits):
        return run(loss_of, summary_of(np.float32(logits)), np.float32([0.5]))

    np.testing.assert_allclose(loss(30, 40, -17), [30.5 + 40.5], rtol=1e-6)
    np.testing.assert_allclose(loss(1e20), [1e20], rtol=1e-6)
    np.testing.assert_array_equal(loss(-1e20), [0])


SHAPES = ["one mode", "two modes", "two far modes", "constant", "wide", "edges of bins"]


@pytest.mark.parametrize("as_on_gpu", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bias_root_makes_predictions_add_up_to_labels(run, as_on_gpu, monkeypatch):
    on_a_gpu(monkeypatch, as_on_gpu)

    def root(summary):
        return kernels.bias_root(summary)

    shapes = {shape: some_logits(shape) for shape in (*SHAPES, "beyond the bins")}
    weights = np.random.default_rng(9).choice([0.0, 1.0, 2.5], len(shapes["wide"]))
    summaries = [with_rates(logits, weights, RATES) for logits in shapes.values()]
    biases = np.split(np.asarray(run(root, np.concatenate(summaries))), len(shapes))
    total = weights.sum()
    for (shape, logits), bias in zip(shapes.items(), biases, strict=True):
        for received, rate in zip(bias, RATES, strict=True):
            rates = [weights @ sigmoid(sign * (logits + received)) / total for sign in (1, -1)]
            precise = digits(1e-6, 1e-3)
            np.testing.assert_allclose(rates, [rate, 1 - rate], rtol=precise, err_msg=shape)
            if "far" not in shape:  # there, a whole range of biases does
                expected = reference_root(logits, weights, rate)
                np.testing.assert_allclose(received, expected, atol=precise, err_msg=shape)


@pytest.mark.quick_cases(4)
def test_a_logit_that_is_not_finite_makes_its_group_nan_and_no_other(run, dtype):
    # One good group, one for each pair of a bad logit and its label, and one without rows.
    pairs = list(itertools.product([np.nan, np.inf, -np.inf], [0.0, 0.5, 1.0]))
    bad, bad_labels = np.array(pairs).T
    logits = np.r_[some_logits("two modes", 1000), bad, np.full(len(bad), 0.5)].astype(dtype)
    # Far from the start: stopping early would show.
    labels = np.r_[np.full(1000, 0.002), bad_labels, np.full(len(bad), 0.4)].astype(dtype)
    bad_groups = np.arange(len(bad)) + 1
    group = np.r_[np.zeros(1000), bad_groups, bad_groups].astype(np.int32)
    summary = summary_of(logits, labels, group=group, num_groups=len(bad) + 2)
    bias = np.asarray(run(kernels.bias_root, summary))
    expected = reference_root(logits[:1000].astype(float), np.ones(1000), 0.002)
    assert bias[0] == pytest.approx(expected, rel=1e-5 if dtype == "float64" else 1e-4)
    assert np.isnan(bias[1:]).all()
    sums = np.asarray(run(loss_of, summary, np.zeros(len(summary), dtype)))
    rows = logits[:1000].astype(float)
    np.testing.assert_allclose(sums[0], (np.logaddexp(0, rows) - 0.002 * rows).sum(), rtol=1e-5)
    assert np.isnan(sums[1:-1]).all()
    assert sums[-1] == 0


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("as_on_gpu", [True, False])
def test_bias_root_of_one_class_or_no_rows_is_nan(run, dtype, as_on_gpu, monkeypatch):
    on_a_gpu(monkeypatch, as_on_gpu)
    logits = some_logits("one mode", 300).astype(dtype)
    empty = np.zeros((1, NUM_BINS, 8), dtype)
    summaries = np.concatenate([summary_of(logits, 0.0), summary_of(logits, 1.0), empty])
    assert np.isnan(run(lambda s: kernels.bias_root(s), summaries)).all()


@pytest.mark.parametrize("as_on_gpu", [False, True])
@settings(max_examples=examples(50))
@given(
    few_lengths(
        st.tuples(
            st.floats(-15.7, 15.7, allow_subnormal=False), st.sampled_from([0.0, 1.0, 0.1, 30.0])
        ),
        min_size=1,
        max_size=12,
    ),
    st.floats(1e-4, 0.9999),
)
def test_bias_root_of_hostile_rows(as_on_gpu, rows, rate):
    logits, weights = (np.array([row[place] for row in rows]) for place in range(2))
    with pytest.MonkeyPatch.context() as patch:
        on_a_gpu(patch, as_on_gpu)
        bias = float(bias_roots[as_on_gpu](summary_of(logits, rate, weights))[0])
    total = weights.sum()
    if not total:
        assert np.isnan(bias)
        return
    received = weights @ sigmoid(logits + bias), weights @ sigmoid(-logits - bias)
    np.testing.assert_allclose(
        received, (rate * total, (1 - rate) * total), rtol=digits(1e-6, 1e-3)
    )


# The rows may be where a bias, or a whole pipeline's shift, takes them: right, or NaN.
far_rows = few_lengths(
    st.tuples(
        st.one_of(st.floats(-88, 87.99), st.sampled_from([-88.0, 80.0, 16.0, 60.2, 87.99])),
        st.sampled_from([0.0, 1.0, 0.25]),
        st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(100))
@given(far_rows, st.floats(-90, 90))
def test_the_loss_of_far_rows_is_right_to_a_millionth(rows, bias):
    logits, labels, weights = np.array(rows).T
    logits, bias = logits.astype(np.float32).astype(float), float(np.float32(bias))
    summary = summary_of(logits, labels, weights)
    received = float(log_loss_sum(summary, keras.ops.cast([bias], summary.dtype))[0])
    x = logits + bias
    losses = (1 - labels) * np.logaddexp(0, x) + labels * np.logaddexp(0, -x)
    assert received == pytest.approx(
        weights @ losses, rel=digits(1e-6, 1e-4), abs=digits(1e-12, 1e-6) * weights.sum() + 1e-300
    )


def test_rows_beyond_the_bins_that_are_moved_near_0_make_the_loss_nan():
    summary = summary_of(np.float32([90, 100, 110]), np.float32([0, 1, 1]))
    assert np.isnan(log_loss_sum(summary, np.float32([-95])))
    assert np.isnan(bias_roots[False](summary))
    assert float(log_loss_sum(summary, np.float32([-40]))[0]) == pytest.approx(50, rel=1e-5)
