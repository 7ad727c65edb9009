"""Where knots go."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_calibration._solvers import knots as kernels

SMALLEST_GAP = 0.01


def mass_up_to(values, weights, place):
    """The share of the mass below `place` and up to it."""
    total = weights.sum()
    return weights[values < place].sum() / total, weights[values <= place].sum() / total


values_and_weights = st.integers(1, 40).flatmap(
    lambda size: st.tuples(
        arrays.arrays(np.float64, size, elements=st.sampled_from([-3.0, -1, -0.0, 0, 0.5, 2, 9])),
        arrays.arrays(np.float64, size, elements=st.sampled_from([0.0, 0.5, 1.0, 10.0])),
    )
)


@settings(max_examples=50)
@given(values_and_weights, st.integers(2, 12))
def test_quantile_knots_split_the_mass_at_their_levels(rows, num_knots):
    values, weights = rows
    weights[0] = max(weights[0], 0.5)
    knots = kernels.quantile_knots(values, num_knots, weights)
    assert knots.shape == (num_knots,)
    for number, knot in enumerate(knots):
        below, up_to = mass_up_to(values, weights, knot)
        level = (number + 0.5) / num_knots
        assert below <= level + 1e-9
        assert up_to >= level - 1e-9
    if weights.all():
        repeated = np.repeat(values, (2 * weights).astype(int))
        np.testing.assert_array_equal(kernels.quantile_knots(repeated, num_knots), knots)


def test_balanced_knots_give_positives_and_negatives_half_the_mass_each():
    generator = np.random.default_rng(4)
    logits = generator.normal(-6, 10, 20_000)
    labels = np.where(generator.random(20_000) < 0.9, 0.0, 0.3)
    labels[generator.random(20_000) < 0.005] = 1
    weights = generator.choice([0, 1, 3.0], 20_000)
    knots = kernels.balanced_knots(logits, labels, 20, weights)
    positives, negatives = weights * labels, weights * (1 - labels)
    assert (np.diff(knots) > 2 * SMALLEST_GAP).all()  # nothing had to be moved
    for number, knot in enumerate(knots):
        positive_quantiles, negative_quantiles = (
            mass_up_to(logits, part, knot) for part in (positives, negatives)
        )
        below, up_to = (
            (a + b) / 2 for a, b in zip(positive_quantiles, negative_quantiles, strict=True)
        )
        assert below <= (number + 0.5) / 20 + 1e-9
        assert up_to >= (number + 0.5) / 20 - 1e-9
    unweighted = kernels.balanced_knots(logits, labels, 20)
    np.testing.assert_array_equal(
        unweighted, kernels.balanced_knots(logits, labels, 20, np.full(20_000, 7.0))
    )
    assert (unweighted != knots).any()


@settings(max_examples=50)
@given(
    arrays.arrays(np.float64, st.integers(2, 30), elements=st.floats(-1e30, 1e30)),
    st.integers(2, 25),
)
def test_balanced_knots_differ_in_float32_whatever_the_ties(logits, num_knots):
    labels = np.arange(len(logits)) % 2
    knots = kernels.balanced_knots(logits, labels, num_knots)
    assert (np.diff(knots.astype(np.float32)) > 0).all()
    assert (np.diff(knots) >= SMALLEST_GAP * (1 - 1e-9) - 1e-15 * np.abs(knots).max()).all()


@settings(max_examples=50)
@given(
    arrays.arrays(
        np.float64,
        st.integers(0, 40),
        elements=st.one_of(
            st.floats(-1e30, 1e30), st.sampled_from([0.0, 1.0, 2.0, np.nan, np.inf, -np.inf, 1e300])
        ),
    ),
    st.integers(2, 20),
)
def test_numeric_knots_of_hostile_columns(values, num_knots):
    knots = kernels.numeric_knots(values, num_knots)
    present = values[np.abs(values) < 1e38]
    assert knots.shape == (num_knots,)
    assert (np.diff(knots) >= 0).all()
    if not len(present):
        np.testing.assert_array_equal(knots, 0)
        return
    assert set(knots) <= set(present)
    distinct = set(present)
    if len(distinct) <= num_knots:
        assert set(knots) == distinct
    elif num_knots >= 4:
        assert knots[0] == present.min()
        assert knots[-1] == present.max()
