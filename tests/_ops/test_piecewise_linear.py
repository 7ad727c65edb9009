"""Piecewise-linear curves, their gradients, penalties and the hat basis."""

import bisect
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import (
    ON_GPU,
    ON_TENSORFLOW,
    compiled,
    examples,
    few_lengths,
    gradients,
    on_a_gpu,
)
from keras_calibration._ops.piecewise_linear import (
    _sum_hats,
    decrease_penalty,
    hat_basis,
    isotonic_values,
    piecewise_linear,
    slope_change_penalty,
    slopes,
)

EXTRAPOLATIONS = ("linear", "constant")


def reference_segment(logit, knots):
    return min(max(bisect.bisect_right(knots, logit) - 1, 0), len(knots) - 2)


def reference_curve(logits, knots, values, extrapolation):
    """Curve, the scale of its rounding, slope, and gradient matrix by the values."""
    knots, values = [float(a) for a in knots], [float(b) for b in values]
    curve, scale, slope = [], [], []
    by_values = np.zeros((len(logits), len(knots)))
    for row, logit in enumerate(float(logit) for logit in logits):
        if np.isnan(logit):
            curve.append(np.nan)
            scale.append(1.0)
            slope.append(np.nan)
            by_values[row] = np.nan
            continue
        outside = extrapolation == "constant" and not knots[0] <= logit <= knots[-1]
        if extrapolation == "constant":
            logit = min(max(logit, knots[0]), knots[-1])
        k = reference_segment(logit, knots)
        share = (logit - knots[k]) / (knots[k + 1] - knots[k])
        rise = values[k + 1] - values[k]
        curve.append(values[k] + share * rise)
        scale.append(abs(values[k]) + abs(share * rise) + 1e-30)
        slope.append(0.0 if outside else rise / (knots[k + 1] - knots[k]))
        by_values[row, k] += 1 - share
        by_values[row, k + 1] += share
    return np.array(curve), np.array(scale), np.array(slope), by_values


def reference_hats(values, knots):
    """`np.interp` of the unit vectors on the distinct knots, each at its first occurrence."""
    distinct, first = np.unique(knots, return_index=True)
    hats = np.zeros((len(values), len(knots)))
    for place, unit in zip(first, np.eye(len(distinct)), strict=True):
        hats[:, place] = np.interp(values, distinct, unit)
    hats[np.isnan(values)] = 0
    return hats


def some_curve(dtype, num_knots=12):
    generator = np.random.default_rng(0)
    knots = np.cumsum(generator.uniform(0.01, 18 / num_knots, num_knots)) - 8
    values = generator.normal(0, 3, num_knots)
    logits = np.r_[generator.normal(-2, 8, 300), knots, 0.0, -0.0, 1e6, -1e6, np.nan]
    return logits.astype(dtype), knots.astype(dtype), values.astype(dtype)


def curve_and_gradients(logits, knots, values, upstream, extrapolation="linear"):
    def curve(logits, values):
        return piecewise_linear(logits, knots, values, extrapolation)

    by_both = gradients(lambda *arguments: curve(*arguments) * upstream, logits, values)
    return curve(logits, values), *by_both


@pytest.mark.quick_cases(12)  # all of them in both dtypes
@pytest.mark.parametrize(
    ("num_knots", "extrapolation"),
    [(12, "linear"), (12, "constant"), (300, "linear"), *((n, "linear") for n in (2, 33, 100))],
)
def test_piecewise_linear_and_its_gradients_equal_the_reference(
    run, dtype, tolerance, num_knots, extrapolation
):
    logits, knots, values = some_curve(dtype, num_knots)
    upstream = np.linspace(-1, 2, len(logits)).astype(dtype)

    def call(*arguments):
        return curve_and_gradients(*arguments, extrapolation)

    curve, by_logits, by_values = run(call, logits, knots, values, upstream)
    np.testing.assert_array_equal(curve[300:-5], values)  # at the knots, exactly
    expected, scale, slope, matrix = reference_curve(logits, knots, values, extrapolation)
    assert curve.dtype == dtype
    np.testing.assert_allclose(curve / scale, expected / scale, rtol=0, atol=tolerance)
    assert isinstance(by_values, type(curve))  # not `IndexedSlices`
    assert np.isnan(by_values).any()  # of the row that is NaN

    finite = ~np.isnan(logits)
    # At the ends of a clipped curve there are two slopes; JAX takes their mean.
    one_slope = finite if ON_TENSORFLOW else finite & ~np.isin(logits, knots[[0, -1]])
    np.testing.assert_allclose(
        by_logits[one_slope], (slope * upstream)[one_slope], rtol=tolerance, atol=tolerance * 1e-3
    )
    logits[~finite] = 0.25
    *_, by_values = run(call, logits, knots, values, upstream)
    *_, matrix = reference_curve(logits, knots, values, extrapolation)
    expected = upstream.astype(float) @ matrix
    scale = np.abs(upstream) @ np.abs(matrix)
    np.testing.assert_allclose(by_values / scale, expected / scale, rtol=0, atol=tolerance)


@pytest.mark.quick_cases(2)
def test_gradients_of_many_rows_are_accurate_and_always_the_same(run):
    generator = np.random.default_rng(0)
    logits = generator.normal(-1.2, 1.7, 2_000_000).astype(np.float32)
    upstream = generator.normal(0.2, 1, len(logits)).astype(np.float32)
    knots = np.quantile(logits, (np.arange(20) + 0.5) / 20).astype(np.float32)

    def by_values(logits, knots, values, upstream):
        return gradients(lambda values: piecewise_linear(logits, knots, values) * upstream, values)[
            0
        ]

    first, again = (run(by_values, logits, knots, knots, upstream) for _ in range(2))
    segment = np.clip(np.searchsorted(knots, logits, side="right") - 1, 0, 18)
    share = (logits.astype(float) - knots[segment]) / np.diff(knots.astype(float))[segment]
    expected = np.bincount(segment, upstream * (1 - share), 20)
    expected += np.bincount(segment + 1, upstream * share, 20)
    np.testing.assert_allclose(first, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    if not ON_GPU:
        np.testing.assert_array_equal(again, first)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("num_rows", [1_000_000, 999_999, 1003, 17])
def test_no_row_of_many_falls(run, num_rows):
    generator = np.random.default_rng(num_rows)
    # Each gap is far wider than what is left to 0: the end of a line, rounded as its beginning is,
    # would lie far above the next value on the next value's scale.
    knots, values = (
        -(8.0 ** -np.arange(20)) * generator.uniform(0.3, 1, 20).astype(np.float32)
        for _ in range(2)
    )
    steps = generator.integers(-20, 20, num_rows) * (generator.random(num_rows) < 0.9)
    logits = generator.choice(knots, num_rows) * (1 + steps * np.finfo(np.float32).eps)
    logits[::4] *= generator.uniform(0.1, 10, len(logits[::4]))
    logits, knots, values = (a.astype(np.float32) for a in (np.sort(logits), knots, values))

    def curve(logits, knots, lowest, above):
        # Not read from memory but worked out in the same program.
        return piecewise_linear(logits, knots, lowest + above * 1.1)

    received = run(curve, logits, knots, np.float32(0), values)
    assert (np.diff(received) >= 0).all()


@pytest.mark.skipif(not ON_TENSORFLOW or ON_GPU, reason="reads XLA's program for a CPU")
def test_search_and_reads_are_loops_of_their_own():
    # Together, they are not vectorized without AVX-512, and take ten times as long.
    import tensorflow as tf

    rows, line = tf.zeros(1000), tf.linspace(-1.0, 1.0, 100)
    program = tf.function(lambda *tensors: piecewise_linear(*tensors), jit_compile=True)
    text = program.experimental_get_compiler_ir(rows, line, line)(stage="optimized_hlo")
    loops = text.split("\n\n")
    searches = [loop for loop in loops if loop.count(" compare(") >= 7]
    reads = [loop for loop in loops if " gather(" in loop]
    assert len(searches) == 1
    assert reads
    assert searches[0] not in reads


NEAR = np.nextafter(np.float32(0.3), np.float32(1))
SPREAD = np.linspace(-3, 4, 40)
HARD_KNOTS = {
    "spread": SPREAD,
    "sigmoid": np.log(np.arange(1, 101) / np.arange(100, 0, -1)),
    "two almost the same": np.sort([*SPREAD, 0.3, NEAR]),
    "two the same": np.sort([*SPREAD, 0.3, 0.3]),
    "one far off": [-1e6, *SPREAD, 1e6],
    "all far off": 1e9 + 4096 * np.arange(40),
    "all huge": 1e30 * np.arange(-50, 50),
    "tiny": 1e-30 * np.arange(-20, 20),
}


@pytest.fixture(scope="module")
def curve_and_gradients_under_xla():
    """Compiled once for each number of knots, not for each test."""
    return compiled(curve_and_gradients)


def hard_logits(knots, generator):
    """The knots, their neighbours, and logits within the lines and far beyond."""
    knots = knots[np.isfinite(knots)]
    left = right = knots
    near = [knots]
    for _ in range(3):
        left, right = (np.nextafter(a, np.float32(b * np.inf)) for a, b in ((left, -1), (right, 1)))
        near += [left, right]
    spread = generator.uniform(*(2 * knots[[0, -1]].astype(float)), 1 << 16)
    within = generator.choice(knots[:-1], 4096) + generator.choice(np.diff(knots), 4096) * 0.7
    logits = np.sort(np.concatenate([*near, spread, within]).astype(np.float32))
    logits[np.abs(logits) < np.finfo(np.float32).tiny] = 0  # XLA takes these for 0
    return logits, generator.normal(size=len(logits)).astype(np.float32)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("knots", HARD_KNOTS.values(), ids=HARD_KNOTS)
def test_many_rows_and_knots_under_xla(knots, curve_and_gradients_under_xla):
    generator = np.random.default_rng(0)
    knots = np.float32(knots)
    gaps, rises = np.diff(knots.astype(float)), generator.exponential(size=len(knots) - 1)
    values = np.cumsum(np.r_[-0.5 * rises.sum(), rises * (gaps > 0)]).astype(np.float32)
    logits, upstream = hard_logits(knots, generator)

    tensors = map(keras.ops.convert_to_tensor, (logits, knots, values, upstream))
    curve, by_logits, by_values = map(np.asarray, curve_and_gradients_under_xla(*tensors))
    assert (np.diff(curve) >= 0).all()
    # Of equal knots, whose values are equal too, the last counts.
    places, first = np.unique(knots.astype(float), return_index=True)
    heights = values[first].astype(float)
    at_knots = np.isin(logits, knots)
    np.testing.assert_array_equal(
        curve[at_knots], heights[np.searchsorted(places, logits[at_knots])]
    )
    segment = np.clip(np.searchsorted(places, logits, side="right") - 1, 0, len(places) - 2)
    slope, offset = (np.diff(heights) / np.diff(places))[segment], logits - places[segment]
    scale = np.abs(heights[segment]) + np.abs(slope * offset) + 1e-30
    expected = heights[segment] + slope * offset
    np.testing.assert_allclose(curve / scale, expected / scale, rtol=0, atol=1e-6)
    np.testing.assert_allclose(by_logits, upstream * slope, rtol=1e-5)
    if len(places) == len(knots):
        share = offset / np.diff(places)[segment]
        scale, expected = (
            np.bincount(segment, rows * size(1 - share), len(knots))
            + np.bincount(segment + 1, rows * size(share), len(knots))
            for rows, size in ((np.abs(upstream), np.abs), (upstream, np.asarray))
        )
        np.testing.assert_allclose(by_values / scale, expected / scale, rtol=0, atol=2e-6)


KNOTS_TO_HALVE = {
    **{f"{number} knots": np.linspace(-6, 3, number) for number in (20, 33, 2, 3, 32)},
    "the last thresholds unused": np.r_[np.linspace(-3, 3, 50), np.full(14, 3.0)],
    "the ends repeated": np.r_[-2.0, np.linspace(-2, 3, 12), 3.0],
    **HARD_KNOTS,
}


@pytest.mark.parametrize("knots", [[-1.0, 2.0], [-2.0, -0.5, 0.0, 3.0]])
def test_sums_of_hats_continue_at_the_ends(knots):
    """As a GPU adds up a gradient: the two hats of a segment have the sum 1, also beyond it."""
    generator = np.random.default_rng(0)
    logits, rows = generator.normal(0, 3, 500), generator.normal(size=500)
    expected = np.zeros(len(knots))
    for logit, row in zip(logits, rows, strict=True):
        left = reference_segment(logit, knots)
        share = (logit - knots[left]) / (knots[left + 1] - knots[left])
        expected[[left, left + 1]] += row * np.array([1 - share, share])
    tensors = [keras.ops.convert_to_tensor(a, "float32") for a in (rows, logits, knots)]
    np.testing.assert_allclose(_sum_hats(*tensors), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("knots", KNOTS_TO_HALVE.values(), ids=KNOTS_TO_HALVE)
def test_on_a_gpu_the_curve_is_the_same_to_the_last_bit(knots, monkeypatch):
    generator = np.random.default_rng(1)
    knots = np.float32(knots)
    values = np.cumsum(generator.exponential(size=len(knots)) ** 3).astype(np.float32)
    values[1::7] -= 2  # falls
    logits, upstream = hard_logits(knots, generator)
    logits[-2:] = np.nan, -0.0
    # Of a row that is NaN, a GPU's sums of all hats become NaN.
    numbers = np.where(np.isnan(logits), 0, logits).astype(np.float32)
    received = []
    for as_on_gpu in (False, True):
        on_a_gpu(monkeypatch, as_on_gpu)
        call = compiled(lambda *arguments: curve_and_gradients(*arguments))
        for rows in (logits, numbers):
            tensors = [keras.ops.convert_to_tensor(a) for a in (rows, knots, values, upstream)]
            received.append([np.asarray(result) for result in call(*tensors)])
    for on_cpu, as_on_gpu in zip(received[0][:2], received[2][:2], strict=True):
        np.testing.assert_array_equal(as_on_gpu, on_cpu)
    np.testing.assert_allclose(received[3][2], received[1][2], rtol=1e-4, atol=1e-4)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("num_knots", [3, 60])
@pytest.mark.parametrize("num_rows", [5, 1 << 16])
def test_logits_that_are_no_numbers(run, dtype, num_knots, num_rows):
    knots = values = np.linspace(-4, 4, num_knots).astype(dtype)
    logits = np.zeros(num_rows, dtype)
    logits[:3] = np.nan, np.inf, -np.inf
    curve = run(piecewise_linear, logits, knots, 2 * values, num_of_any_size=1)
    assert curve.dtype == dtype
    np.testing.assert_allclose(curve[:4], [np.nan, np.inf, -np.inf, 0], atol=1e-6)

    def constant(logits):
        return piecewise_linear(logits, knots, 2 * values, "constant")

    curve = run(constant, logits, num_of_any_size=1)
    np.testing.assert_allclose(curve[:4], [np.nan, 8, -8, 0], atol=1e-6)


finite_logits = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@st.composite
def curves(draw):
    gaps = draw(few_lengths(st.floats(0.01, 20), min_size=2, max_size=12))
    knots = (draw(st.floats(-30, 30)) + np.cumsum(gaps)).astype(np.float32)
    # Not so small that a slope would be subnormal, which TensorFlow takes for 0.
    heights = st.floats(-100, 100, width=32).map(lambda value: value if abs(value) > 1e-30 else 0.0)
    values = draw(st.lists(heights, min_size=len(knots), max_size=len(knots)))
    chosen = st.one_of(
        finite_logits,
        st.floats(-40, 40, width=32, allow_subnormal=False),
        st.sampled_from([*map(float, knots), 0.0, -0.0, np.nan]),
    )
    logits = draw(few_lengths(chosen, max_size=20))
    return np.array(logits, np.float32), knots, np.array(values, np.float32)


@settings(max_examples=examples(50))
@given(curves(), st.sampled_from(EXTRAPOLATIONS))
def test_piecewise_linear_of_hostile_logits(curve, extrapolation):
    logits, knots, values = curve
    received = piecewise_linear(logits, knots, values, extrapolation)
    expected, scale, *_ = reference_curve(logits, knots, values, extrapolation)
    np.testing.assert_allclose(received / scale, expected / scale, rtol=0, atol=1e-5)


def test_slopes_and_penalties_equal_the_reference(run, dtype, tolerance):
    _, knots, values = some_curve(dtype)
    received = run(slopes, knots, values)
    falls = run(decrease_penalty, values)
    changes = run(slope_change_penalty, knots, values)
    pairs = list(itertools.pairwise(zip(knots.astype(float), values.astype(float), strict=True)))
    expected = [(right[1] - left[1]) / (right[0] - left[0]) for left, right in pairs]
    np.testing.assert_allclose(received, expected, rtol=tolerance)
    expected_falls = sum(max(left[1] - right[1], 0) for left, right in pairs)
    np.testing.assert_allclose(falls, expected_falls, rtol=tolerance)
    expected_changes = sum((b - a) ** 2 for a, b in itertools.pairwise(expected)) / 2
    np.testing.assert_allclose(changes, expected_changes, rtol=tolerance)
    assert float(slope_change_penalty(knots, -2 * knots + 1)) < 1e-10
    assert float(decrease_penalty(np.float32([-1, -1, 0, 5]))) == 0


def test_hat_basis_equals_the_reference(run, dtype, tolerance):
    generator = np.random.default_rng(1)
    for knots in ([-2, 0, 0.5, 7], [-1, -1, 3, 3, 3, 8, 8], [4, 4, 4], [0, 1e-3, 1e6]):
        knots = np.array(knots, dtype)
        values = np.r_[generator.normal(0, 5, 50), knots, 1e30, -1e30, np.inf, -np.inf, np.nan]
        values = values.astype(dtype)
        hats = run(hat_basis, values, knots, num_of_any_size=1)
        assert hats.dtype == dtype
        np.testing.assert_allclose(hats, reference_hats(values, knots), rtol=0, atol=tolerance)
        assert run(hat_basis, values[:0], knots, num_of_any_size=1).shape == (0, len(knots))


@settings(max_examples=examples(50))
@given(
    few_lengths(st.sampled_from([-50.0, -1.0, -0.5, 0.0, 0.25, 3.0, 1e6]), min_size=2, max_size=10),
    few_lengths(
        st.one_of(
            st.floats(width=32, allow_subnormal=False), st.sampled_from([-1.0, 0.25, 3.0, 1e6])
        ),
        max_size=10,
    ),
)
def test_hat_basis_of_repeated_knots(knots, values):
    knots, values = np.sort(np.float32(knots)), np.array(values, np.float32)
    hats = np.asarray(hat_basis(values, knots))
    np.testing.assert_allclose(hats, reference_hats(values, knots), rtol=0, atol=1e-5)
    assert (hats >= 0).all()
    np.testing.assert_allclose(hats.sum(axis=1), np.where(np.isnan(values), 0, 1), atol=1e-6)


def closest_distance(values):
    """No non-decreasing sequence is nearer than half the deepest fall."""
    falls = [values[i] - min(values[i:]) for i in range(len(values))]
    return max(falls) / 2


@settings(max_examples=50)
@given(st.lists(st.integers(-1_000_000, 1_000_000), min_size=1, max_size=20))
def test_isotonic_values_are_the_closest_that_never_fall(values):
    values = np.float32(values)
    received = np.asarray(isotonic_values(values))
    assert (np.diff(received) >= 0).all()
    distance = np.abs(received.astype(float) - values).max()
    assert distance == pytest.approx(closest_distance(values.astype(float)), abs=0.1)
    np.testing.assert_array_equal(np.asarray(isotonic_values(np.sort(values))), np.sort(values))
    assert received.dtype == np.float32
