"""The AUC of a histogram of positives and negatives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import digits, few_lengths, one_program
from keras_calibration._ops import histogram_auc as kernels

auc_of = one_program(lambda *rows: kernels.histogram_auc(kernels.label_histogram(*rows)))


def bins(logits):
    """Bins of 1/64 on [-16, 16), and of 1/16 to ±88, and two open ones."""
    edges = [np.arange(-88, -16, 1 / 16), np.arange(-16, 16, 1 / 64), np.arange(16, 88.01, 1 / 16)]
    return np.searchsorted(np.concatenate(edges), logits, side="right")


def reference(labels, scores, weights):
    """The share of pairs in the right order, pair by pair; ties count half."""
    positives, negatives = weights * labels, weights * (1 - labels)
    order = 0.5 + 0.5 * np.sign(scores[:, None] - scores[None, :])
    pairs = positives.sum() * negatives.sum()
    return positives @ order @ negatives / pairs if pairs > 0 else np.nan


def test_histogram_equals_the_reference(run, dtype, tolerance):
    rng = np.random.default_rng(0)
    labels, weights = rng.choice([0.0, 1.0, 0.3], 300), rng.exponential(size=300)
    rows = [array.astype(dtype) for array in (labels, rng.normal(0, 6, 300) + 2 * labels, weights)]
    labels, logits, weights = (array.astype(np.float64) for array in rows)
    expected = np.zeros((4354, 2))
    for label, number, weight in zip(labels, bins(logits), weights, strict=True):
        expected[number] += weight * label, weight * (1 - label)
    received = run(kernels.label_histogram, *rows, num_of_any_size=3)
    np.testing.assert_allclose(received, expected, rtol=tolerance)


EDGES = [0, -1e-6, 1 / 64, 15.999, 16, -16, -16.01, 87.99, 88, -88, -88.01, 3e38, -np.inf, np.inf]
BINS = [2177, 2176, 2178, 3200, 3201, 1153, 1152, 4352, 4353, 1, 0, 4353, 0, 4353]


def test_edges_of_bins(run, dtype):
    logits = np.array(EDGES, dtype)
    # Weights of which no two sums are the same tell which row went where.
    weights = (2.0 ** np.arange(len(logits))).astype(dtype)
    histogram = np.asarray(run(kernels.label_histogram, np.ones_like(logits), logits, weights))
    expected = np.zeros((4354, 2))
    np.add.at(expected[:, 0], BINS, weights)
    np.testing.assert_array_equal(histogram, expected)


@settings(max_examples=40)
@given(
    few_lengths(
        st.tuples(
            st.sampled_from([0.0, 1.0, 0.25]),
            st.sampled_from([-np.inf, -40.0, -15.99, -1 / 64, 0.0, 0.001, 2.0, 16.0, 3e38, np.inf]),
            st.sampled_from([0.0, 1.0, 3.5, 1e6]),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_equals_the_reference_on_any_few_rows(rows):
    labels, logits, weights = np.array(rows).T
    received = auc_of(labels, logits, weights)
    expected = reference(labels, bins(logits), weights)
    assert float(received) == pytest.approx(expected, rel=digits(1e-9), abs=1e-9, nan_ok=True)
