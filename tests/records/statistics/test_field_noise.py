"""Labels drawn from the predictions: the counts and the weights have the right distribution."""

import numpy as np
import pytest

from calibration_records.statistics.field_noise import drawn_field_sums

NUM_VALUES = 20_000


def drawn_positives(probabilities, weights):
    """The weight of the positives (20,000,) of as many equal field values, drawn once."""
    p, w = np.asarray(probabilities, float), np.asarray(weights, float)
    sums = [0.0, w @ p, w.sum(), w @ w, w**2 @ (p * (1 - p)), p.sum(), p @ p]
    ((residuals, positives, rows),) = (
        draw.T for draw in drawn_field_sums(np.tile(sums, (NUM_VALUES, 1)), 1)
    )
    np.testing.assert_allclose(residuals, positives - w @ p)
    np.testing.assert_array_equal(rows, w.sum())
    return positives


@pytest.mark.parametrize("p", [(0.9, 0.7), (0.5, 0.2), (0.05, 0.98)])
def test_the_counts_of_two_rows_are_exact(p):
    counts = drawn_positives(p, [1, 1])
    a, b = p
    expected = np.array([(1 - a) * (1 - b), a + b - 2 * a * b, a * b])
    received = np.bincount(counts.astype(int), minlength=3) / NUM_VALUES
    np.testing.assert_allclose(received, expected, atol=4 * np.sqrt(0.25 / NUM_VALUES))


@pytest.mark.parametrize(
    ("p", "w"),
    [
        ([0.5] * 10 + [0.99] * 10, [0.1] * 10 + [1] * 10),  # rows that vary have small weights
        ([0.5] * 10 + [0.99] * 10, [1] * 10 + [0.1] * 10),
        ([0.1] * 20, np.linspace(0.1, 2, 20)),
        ([0.9, 0.8, 0.7, 0.1], [2, 2, 2, 2]),
    ],
)
def test_weighted_counts_have_the_mean_and_the_variance_of_the_rows(p, w):
    p, w = np.asarray(p), np.asarray(w, float)
    positives = drawn_positives(p, w)
    variance = w**2 @ (p * (1 - p))
    assert positives.mean() == pytest.approx(w @ p, abs=4 * np.sqrt(variance / NUM_VALUES))
    assert positives.var() == pytest.approx(variance, rel=0.06)
