"""Spreads of several sparse fields: nearer the truth, better on new rows, untouched where dense."""

import functools

import numpy as np
import pytest
import scipy.stats
from scipy.special import expit

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers import field_offsets
from keras_calibration._solvers.field_offsets import OffsetRows, fit_field_offsets
from keras_calibration._solvers.field_spreads import _GRID, half_cauchy, pooled_spreads
from keras_calibration._solvers.row_folds import weights_in_folds

NUM_ROWS = 6_000


def sparse_world(num_fields, num_values, spread, seed=0):
    """Rows and new ones: logits, labels, ids."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1, 2 * NUM_ROWS)
    ids = [generator.integers(0, num_values, 2 * NUM_ROWS) for _ in range(num_fields)]
    true = logits + sum(generator.normal(0, spread, num_values)[column] for column in ids)
    labels = (generator.random(2 * NUM_ROWS) < expit(true)).astype(float)
    halves = slice(NUM_ROWS), slice(NUM_ROWS, None)
    return [(logits[half], labels[half], [column[half] for column in ids]) for half in halves]


def fitted(part, num_values):
    logits, labels, ids = part
    return fit_of_rows(logits, labels, None, ids, num_values)


def fit_of_rows(logits, labels, weights, ids, num_values):
    rows = Rows(logits, labels, weights, dict(enumerate(ids)))
    return fit_field_offsets(
        OffsetRows(logits, labels, weights, ids=ids),
        [num_values] * len(ids),
        half_cauchy(1.0),
        functools.partial(weights_in_folds, rows=rows),
    )


def log_loss(fit, part):
    logits, labels, ids = part
    offsets = sum(u[column] for u, column in zip(fit.offsets, ids, strict=True))
    calibrated = fit.slope * logits + fit.bias + offsets
    return float(np.mean(np.logaddexp(0, calibrated) - labels * calibrated))


@pytest.mark.parametrize("num_fields", [4, 6])
def test_spreads_of_sparse_fields_are_nearer_the_truth_and_better_on_new_rows(
    num_fields, monkeypatch
):
    first, new = sparse_world(num_fields, num_values=1_500, spread=0.7)
    improved = fitted(first, 1_500)
    monkeypatch.setattr(field_offsets, "improve_spreads", lambda *_: False)
    before = fitted(first, 1_500)
    off, off_before = (
        np.abs(np.log(fit.spreads.deviations / 0.7)).mean() for fit in (improved, before)
    )
    assert off < off_before - 0.03
    assert log_loss(improved, new) < log_loss(before, new) - 0.0005
    assert improved.converged


def test_of_one_field_or_of_dense_ones_nothing_changes(monkeypatch):
    one, _ = sparse_world(1, num_values=1_500, spread=0.7)
    dense, _ = sparse_world(3, num_values=10, spread=0.5)
    fits = fitted(one, 1_500), fitted(dense, 10)
    monkeypatch.setattr(field_offsets, "improve_spreads", lambda *_: False)
    for before, after in zip((fitted(one, 1_500), fitted(dense, 10)), fits, strict=True):
        np.testing.assert_array_equal(before.spreads.deviations, after.spreads.deviations)
        np.testing.assert_array_equal(before.offsets[0], after.offsets[0])


def test_weights_that_are_whole_numbers_count_rows():
    (logits, labels, ids), _ = sparse_world(3, num_values=1_000, spread=0.7)
    part = logits[:2_000], labels[:2_000], [column[:2_000] for column in ids]
    zeros = np.zeros(len(logits))
    zeros[:2_000] = 1.0
    weighted, alone = fit_of_rows(logits, labels, zeros, ids, 1_000), fitted(part, 1_000)
    np.testing.assert_allclose(weighted.spreads.deviations, alone.spreads.deviations, rtol=1e-6)


@pytest.mark.parametrize(
    ("spreads", "widths"),
    # In the second, three fields agree, and one lies halfway between them and what it says itself.
    [([0.2, 0.5, 1.5], [0.1, 0.6, 2.0]), ([0.3, 0.3, 0.3, 3.0], [0.05, 0.05, 0.05, 0.5])],
)
def test_pooled_spreads_are_the_mode_of_the_normal_prior_about_a_common_one(spreads, widths):
    """Against the same by numerical integration on a finer grid of the common spread."""
    centres, widths = np.log(spreads), np.array(widths)
    log_scales = np.log(_GRID)
    likelihoods = np.stack(
        [scipy.stats.norm.logpdf(log_scales, c, w) for c, w in zip(centres, widths, strict=True)]
    )
    pooled = pooled_spreads(likelihoods, lambda scales: np.zeros_like(scales))
    fine = np.linspace(np.log(1e-2), np.log(5.0), 2001)
    # A normal likelihood and the normal prior: sums of variances.
    evidence = sum(
        scipy.stats.norm.logpdf(fine, c, np.hypot(w, 0.5))
        for c, w in zip(centres, widths, strict=True)
    )
    common = fine[np.argmax(evidence)]
    modes = (centres / widths**2 + common / 0.25) / (1 / widths**2 + 1 / 0.25)
    step = log_scales[1] - log_scales[0]
    np.testing.assert_allclose(np.log(pooled), modes, atol=1.1 * step)
