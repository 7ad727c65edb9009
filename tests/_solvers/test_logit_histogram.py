"""The one-pass summary of labelled logits, against sums over the rows."""

import functools
import operator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_calibration._rows.line import Line
from keras_calibration._rows.weights import counts_of
from keras_calibration._solvers.logit_histogram import (
    EDGES,
    LARGEST_LOGIT,
    NUM_BINS,
    LogitHistogram,
    logit_histogram,
    quantile_edges,
)

ANY_LOGITS = st.one_of(
    st.floats(-20, 20, width=32),
    st.floats(-16384, 16384, width=32),
    st.sampled_from([0.0, -0.0, 16.0, -16.0, 1 / 64, -1 / 64, 16384.0, -16384.0, 1e-40]),
)


def rows(num_rows, seed=0, spread=3.0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, spread, num_rows).astype(np.float32)
    labels = (generator.random(num_rows) < 0.2).astype(np.float32)
    weights = generator.choice([0.0, 0.5, 2.0], num_rows).astype(np.float32)
    return logits, labels, weights


def test_edges():
    assert (np.diff(EDGES) > 0).all()
    assert EDGES[0] == -LARGEST_LOGIT
    np.testing.assert_array_equal(EDGES, -EDGES[::-1])
    inner = np.diff(EDGES)[np.abs(EDGES[:-1]) < 15.9]
    np.testing.assert_array_equal(inner, 1 / 64)
    outer = EDGES[EDGES > 16]
    assert (np.diff(outer) / outer[:-1]).max() < 1 / 128


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(ANY_LOGITS, st.sampled_from([0.0, 1.0, 0.3]), st.sampled_from([0.0, 1.0, 2.5])),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([np.float32, np.float64]),
)
def test_sums_are_those_of_the_rows(given_rows, dtype):
    logits, labels, weights = (np.array(column, dtype) for column in zip(*given_rows, strict=True))
    weights[0] = 1
    histogram = logit_histogram(logits, labels, weights)
    assert histogram.num_rows == len(logits)
    wide = logits.astype(float)
    number = np.clip(np.searchsorted(EDGES, wide, side="right") - 1, 0, NUM_BINS - 1)
    offset = wide - 0.5 * (EDGES[number] + EDGES[number + 1])
    expected = np.zeros((2, NUM_BINS, 3))
    for place in range(len(logits)):
        powers = offset[place] ** np.arange(3)
        positive = float(labels[place])
        expected[0, number[place]] += weights[place] * (1 - positive) * powers
        expected[1, number[place]] += weights[place] * positive * powers
    np.testing.assert_allclose(histogram.moments, expected, rtol=1e-6, atol=1e-6)
    atoms = histogram.atoms()
    assert (np.diff(atoms.means) >= 0).all()
    total = (weights.astype(float) * wide).sum()
    rounding = 1e-6 * (weights.astype(float) @ np.abs(wide)) + 1e-5  # the sums may cancel
    assert atoms.weights @ atoms.means == pytest.approx(total, abs=rounding)
    positive_sum = (weights.astype(float) * labels * wide).sum()
    assert atoms.positives @ atoms.positive_means == pytest.approx(positive_sum, abs=rounding)


@pytest.mark.parametrize("scale", [0.2, 1.0, 1.7])
@pytest.mark.parametrize("spread", [3.0, 60.0])
def test_softplus_of_two_atoms_a_bin_is_that_of_the_rows(scale, spread):
    logits, labels, weights = rows(100_000, spread=spread)
    scale *= min(1.0, 10 / spread)
    atoms = logit_histogram(logits, labels, weights).atoms()
    received = sum(
        0.5 * atoms.weights @ np.logaddexp(0, scale * (atoms.means + sign * atoms.spreads) + 0.3)
        for sign in (-1, 1)
    )
    expected = weights.astype(float) @ np.logaddexp(0, scale * logits.astype(float) + 0.3)
    assert received / weights.sum() == pytest.approx(expected / weights.sum(), abs=2e-10)


def test_scaled_and_stored():
    histogram = logit_histogram(*rows(500, spread=20.0))
    half = histogram.scaled(0.5)
    assert half.positives == pytest.approx(0.5 * histogram.positives)
    assert half.num_rows == 250
    restored = LogitHistogram.from_arrays(histogram.to_arrays())
    np.testing.assert_array_equal(restored.moments, histogram.moments)
    assert restored.num_rows == 500
    assert restored.negatives == histogram.negatives


@pytest.mark.parametrize("unit", [1.0, 1e-300, 1e300])
def test_importances_add_up_to_those_of_all_rows(unit):
    logits, labels, _ = rows(900)
    weights = np.random.default_rng(1).exponential(size=900) ** 2

    def histogram_of(part):
        counts, scaled = counts_of(unit * weights[part], "importance")
        return replace(logit_histogram(logits[part], labels[part], counts), unit=scaled)

    whole, parts = histogram_of(slice(None)), [histogram_of(slice(p, None, 7)) for p in range(7)]
    for order in (parts, parts[::-1]):
        merged = functools.reduce(operator.add, order)
        np.testing.assert_allclose(merged.moments, whole.moments, rtol=1e-9, atol=1e-12)
        assert merged.unit == pytest.approx(whole.unit)
    assert whole.unit == pytest.approx(unit * (weights @ weights) / weights.sum())
    # To forget half is to drop half of the rows, whatever their weights.
    kept, added = parts[0].scaled(0.5), parts[0].scaled(0.5) + parts[0].scaled(0.5)
    assert kept.unit == parts[0].unit
    np.testing.assert_allclose(added.moments, parts[0].moments)
    assert LogitHistogram.from_arrays(whole.to_arrays()).unit == whole.unit


@pytest.mark.parametrize("balanced", [True, False])
def test_quantile_edges_are_near_the_quantiles(balanced):
    logits, labels, weights = (column.astype(float) for column in rows(50_000))
    mass = weights.copy()
    if balanced:
        mass = weights * labels / (weights @ labels)
        mass += weights * (1 - labels) / (weights @ (1 - labels))
    order = np.argsort(logits)
    cumulative = np.cumsum(mass[order])
    expected = [
        logits[order][np.searchsorted(cumulative, (k - 0.5) / 9 * cumulative[-1])]
        for k in range(1, 10)
    ]
    received = quantile_edges(logit_histogram(logits, labels, weights), 9, balanced)
    np.testing.assert_allclose(received, expected, atol=1 / 64)
    assert np.isin(received, EDGES).all()


@pytest.mark.parametrize("far", [-16385.0, 16384.002, 1e30])
def test_logits_beyond_all_bins_count_as_those_at_their_end(far):
    logits = np.array([1.0, -LARGEST_LOGIT, far, LARGEST_LOGIT], np.float32)
    received = logit_histogram(logits, [0, 1, 0, 1])
    expected = logit_histogram(np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT), [0, 1, 0, 1])
    np.testing.assert_array_equal(received.moments, expected.moments)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_bins_move_with_the_logits(unit):
    logits, labels, weights = rows(1000)
    logits = logits.astype("float64")
    bins = Line(2.0, -1.0)
    moved = Line(2.0 / unit, -1.0 - 6 / unit)
    received = logit_histogram(unit * logits + 3, labels, weights, moved)
    expected = logit_histogram(logits, labels, weights, bins)
    totals = [histogram.moments.sum(axis=(0, 1))[0] for histogram in (received, expected)]
    assert totals[0] == totals[1]
    atoms, others = replace(received, view=Line(0.5, 0.5)).atoms(), expected.atoms()
    # A logit on an edge may be in either bin, after rounding.
    np.testing.assert_allclose(
        atoms.weights @ atoms.means, others.weights @ (0.5 * others.means + 0.5), rtol=1e-9
    )
    np.testing.assert_allclose(
        atoms.weights @ atoms.spreads, 0.5 * others.weights @ others.spreads, rtol=1e-3
    )


def test_a_histogram_on_other_bins_keeps_weights_and_means():
    logits, labels, weights = rows(5000)
    plain = logit_histogram(logits, labels, weights)
    moved = plain.on_bins(Line(3.0, 0.7))
    expected = logit_histogram(logits, labels, weights, Line(3.0, 0.7))
    sums = [histogram.moments[:, :, 0].sum(axis=1) for histogram in (moved, expected)]
    np.testing.assert_allclose(*sums, rtol=1e-12)
    means = [
        (histogram.atoms().weights @ histogram.atoms().means) / histogram.atoms().weights.sum()
        for histogram in (moved, expected)
    ]
    np.testing.assert_allclose(*means, rtol=1e-9)
    assert moved.on_bins(moved.bins) is moved
    with pytest.raises(ValueError, match=r"`other`.*bins"):
        moved + plain
