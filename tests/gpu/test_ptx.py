"""Programs for GPUs that are not there, run: curves to the bit, sums to rounding."""

import functools
import itertools

import keras
import numpy as np
import pytest

from gpu import compiler, programs
from gpu.ptx import GpuProgram, Launch, read_kernels
from keras_calibration._ops import piecewise_linear

needs_compiler = pytest.mark.skipif(not compiler.is_available(), reason=compiler.MISSING)

# The first rows of 1e7 and more, for which the programs are: whole blocks of every kernel.
NUM_ROWS = 40_960
TINY, EPSILON = np.finfo("f4").tiny, np.finfo("f4").eps

# Thread i counts to i, at least to 1, in a loop that threads leave one by one. Odd threads double
# it. Each takes what its mirror image has left in shared memory; the block adds these numbers up.
MIRRORED = """
.visible .entry mirrored(
	.param .u64 .ptr .align 16 mirrored_param_0,
	.param .u64 .ptr .align 256 mirrored_param_1
)
.reqntid 64, 1, 1
{
	.reg .pred 	%p<3>;
	.shared .align 4 .b8 shared_0[256];
	ld.param.b64 	%rd1, [mirrored_param_0];
	ld.param.b64 	%rd2, [mirrored_param_1];
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r2, %ctaid.x;
	mov.b32 	%r3, 0;
	mov.b32 	%r4, 0f00000000;
$L__BB0_1:
	add.s32 	%r3, %r3, 1;
	add.rn.f32 	%r4, %r4, 0f3F800000;
	setp.lt.u32 	%p1, %r3, %r1;
	@%p1 bra 	$L__BB0_1;
	and.b32 	%r5, %r1, 1;
	setp.eq.b32 	%p2, %r5, 0;
	@%p2 bra 	$L__BB0_2;
	add.rn.f32 	%r4, %r4, %r4;
$L__BB0_2:
	mul.wide.u32 	%rd3, %r1, 4;
	mov.b64 	%rd4, shared_0;
	add.s64 	%rd5, %rd4, %rd3;
	st.shared.b32 	[%rd5], %r4;
	bar.sync 	0;  // BARRIER
	sub.s64 	%rd6, %rd4, %rd3;
	ld.shared.b32 	%r6, [%rd6+252];
	shl.b32 	%r7, %r2, 6;
	or.b32 	%r8, %r7, %r1;
	mul.wide.u32 	%rd7, %r8, 4;
	add.s64 	%rd8, %rd1, %rd7;
	st.global.b32 	[%rd8], %r6;
	mul.wide.u32 	%rd9, %r2, 4;
	add.s64 	%rd10, %rd2, %rd9;
	atom.relaxed.sys.global.add.f32 	%r9, [%rd10], %r6;
	ret;
}
"""


def launch_mirrored(ptx):
    memory = np.zeros(2048, "u1")
    Launch(read_kernels(ptx)["mirrored"], memory, [256, 1024], (3, 64)).run()
    return memory.view("f4")[64:][: 3 * 64].reshape(3, 64), memory.view("f4")[256:][:3]


def test_loops_branches_barriers_and_additions():
    counts = np.maximum(np.arange(64), 1) * np.where(np.arange(64) % 2, 2, 1)
    mirrored, sums = launch_mirrored(MIRRORED)
    np.testing.assert_array_equal(mirrored, np.tile(counts[::-1], (3, 1)))
    np.testing.assert_array_equal(sums, np.full(3, counts.sum()))


@pytest.mark.parametrize(
    ("line", "instead", "error", "message"),
    [
        ("bar.sync 	0;", "barrier.sync 	0;", NotImplementedError, r"barrier\.sync"),
        # It may be contracted with a product.
        (
            "add.rn.f32 	%r4, %r4, %r4;",
            "add.f32 	%r4, %r4, %r4;",
            NotImplementedError,
            "add.f32",
        ),
        ("bar.sync 	0;", "@%p2 bar.sync 	0;", RuntimeError, "wait for others"),
        ("[%rd6+252]", "[%rd6+256]", IndexError, "rd6"),
        ("[%rd8]", "[%rd8+2]", IndexError, "rd8"),
    ],
)
def test_what_is_not_known_or_not_allowed_raises(line, instead, error, message):
    with pytest.raises(error, match=message):
        launch_mirrored(MIRRORED.replace(line, instead))


def cases():
    """GPU and rows of the programs; the first is quick."""
    for gpu, num_rows in itertools.product(("h200", "h100", "a100", "b200"), (10**7, 10**8)):
        is_quick = (gpu, num_rows) == ("h200", 10**7)
        marks = [] if is_quick else [pytest.mark.slow]
        yield pytest.param(gpu, num_rows, marks=marks, id=f"{gpu}-{num_rows:.0e}")


each_gpu = pytest.mark.parametrize(("gpu", "num_rows"), list(cases()))
each_curve = pytest.mark.parametrize("num_knots", [20, 100])


@functools.cache
def program(gpu, num_rows, name):
    return GpuProgram(gpu, programs.lowered(programs.kernels(num_rows)[name]))


def curve_points(num_knots, falls=False, seed=0):
    """Knots, two as close as can be, and values: some equal, some lower if it falls.

    One point is (0, 0): left of it, no large number hides a slope that was rounded up.
    """
    generator = np.random.default_rng(seed)
    knots = np.sort(generator.normal(0, 3, num_knots)).astype("f4")
    origin = np.argmin(np.abs(knots))
    knots[origin] = 0
    knots[3] = np.nextafter(knots[2], np.float32(np.inf))
    steps = generator.exponential(size=num_knots).astype("f4")
    steps[4:6] = 0
    values = np.cumsum(steps) - np.cumsum(steps)[origin]
    if falls:
        values[1::7] -= 2
    return knots, values


def hostile_logits(knots, most):
    """Logits of all sizes up to the largest, the knots, and what is next to these, shuffled."""
    generator = np.random.default_rng(0)
    sizes = [0.0, 1e-45, 1e-40, TINY, 1e-30, 88.0, 1e6, 1e30, np.finfo("f4").max, np.inf]
    ends = np.float32([size for size in sizes if size <= most])
    near = [np.nextafter(knots, np.float32(end)) for end in (-np.inf, np.inf)]
    special = np.concatenate([knots, *near, ends, -ends])
    few = np.repeat(special, 5)
    many = generator.normal(0, 4, NUM_ROWS - len(few))
    return generator.permutation(np.concatenate([few, many]).astype("f4"))


def lines(knots, values, logits):
    """Number and slope of the line of each row, as the formula has it, in float32."""
    slopes = np.diff(values) / np.diff(knots)
    line = np.clip(np.searchsorted(knots, logits, side="right") - 1, 0, len(knots) - 1)
    return line, slopes[np.minimum(line, len(slopes) - 1)]


def reference_curve(logits, knots, values):
    """In float32, rounded operation by operation."""
    line, slope = lines(knots, values, logits)
    next_value = values[np.minimum(line + 1, len(knots) - 1)]
    is_outside = (logits < knots[0]) | (logits >= knots[-1])
    highest = np.where(is_outside, np.inf, np.maximum(values[line], next_value))
    with np.errstate(all="ignore"):
        return np.minimum(values[line] + (logits - knots[line]) * slope, highest).astype("f4")


def assert_same_bits(received, expected):
    assert received.dtype == expected.dtype == "f4"
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(received), ~is_number)
    np.testing.assert_array_equal(received[is_number].view("u4"), expected[is_number].view("u4"))


def rough_division(a, b):
    """A division that is off by up to 2 units in the last place, as `div.full` may be."""
    quotient = a / b
    bits = quotient.view("i4")
    # The same quotient is always off by the same.
    off = (bits.astype("u4") * np.uint32(2654435761) >> 13).astype("i4") % 5 - 2
    return np.where(quotient == 0, quotient, (bits + off).view("f4"))


@needs_compiler
@each_gpu
@each_curve
@pytest.mark.parametrize("falls", [False, True], ids=["rising", "falling"])
def test_curve(gpu, num_rows, num_knots, falls):
    knots, values = curve_points(num_knots, falls)
    logits = hostile_logits(knots, np.inf)
    logits[:3] = np.nan
    (curve,) = program(gpu, num_rows, f"ILPS, {num_knots} knots").run(logits, knots, values)
    assert_same_bits(curve, reference_curve(logits, knots, values))
    # CPUs take numbers as small as these for 0.
    logits[np.abs(logits) < TINY] = 0
    (curve,) = program(gpu, num_rows, f"ILPS, {num_knots} knots").run(logits, knots, values)
    on_cpu = keras.ops.convert_to_numpy(piecewise_linear(logits, knots, values))
    assert_same_bits(curve, on_cpu)


@needs_compiler
@each_gpu
@each_curve
@pytest.mark.parametrize("divide", [np.divide, rough_division])
def test_curve_never_falls(gpu, num_rows, num_knots, divide):
    compiled = program(gpu, num_rows, f"ILPS, {num_knots} knots")
    for seed in range(5):
        knots, values = curve_points(num_knots, seed=seed)
        logits = np.sort(hostile_logits(knots, np.inf))
        (curve,) = compiled.run(logits, knots, values, divide=divide)
        assert np.all(curve[1:] >= curve[:-1])


@needs_compiler
@each_gpu
@each_curve
def test_curve_by_a_rough_division(gpu, num_rows, num_knots):
    knots, values = curve_points(num_knots)
    logits = hostile_logits(knots, 1e30)
    compiled = program(gpu, num_rows, f"ILPS, {num_knots} knots")
    (curve,) = compiled.run(logits, knots, values, divide=rough_division)
    line, slope = lines(knots, values, logits)
    scale = np.abs((logits - knots[line]).astype(float) * slope) + np.abs(values[line])
    assert np.all(np.abs(curve - reference_curve(logits, knots, values)) <= 4 * EPSILON * scale)


@needs_compiler
@each_gpu
@each_curve
@pytest.mark.parametrize("divide", [np.divide, rough_division])
def test_gradient_of_the_curve(gpu, num_rows, num_knots, divide):
    knots, values = curve_points(num_knots, falls=True)
    logits = hostile_logits(knots, 1e30)
    upstream = np.random.default_rng(1).normal(size=NUM_ROWS).astype("f4")
    curve, by_logits, by_values = program(
        gpu, num_rows, f"ILPS, {num_knots} knots, with gradient"
    ).run(upstream, logits, knots, values, divide=divide)
    line, slope = lines(knots, values, logits)
    if divide is np.divide:
        assert_same_bits(curve, reference_curve(logits, knots, values))
        assert_same_bits(by_logits, upstream * slope)
    np.testing.assert_allclose(by_logits, upstream * slope, rtol=3 * EPSILON)

    # In float64: the row is a weighted mean of two values.
    segment = np.minimum(line, num_knots - 2)
    places = knots.astype(float)
    share = (logits - places[segment]) / np.diff(places)[segment]
    expected, scale = np.zeros((2, num_knots))
    for knot, weight in ((segment, 1 - share), (segment + 1, share)):
        np.add.at(expected, knot, upstream * weight)
        np.add.at(scale, knot, np.abs(upstream) * (1 + np.abs(share)))
    np.testing.assert_allclose(by_values / scale, expected / scale, rtol=0, atol=1e-6)


@needs_compiler
@each_gpu
def test_summary_of_logits(gpu, num_rows):
    edges = np.r_[np.arange(-88, -16, 0.5), np.arange(-16, 16, 0.25), np.arange(16, 88.5, 0.5)]
    logits = hostile_logits(edges.astype("f4"), 1e30)
    labels = (np.random.default_rng(1).uniform(size=NUM_ROWS) < 0.3).astype("f4")
    (sums,) = program(gpu, num_rows, "summary of logits").run(labels, logits)

    # In float64: the offset from the centre of each bin, in half widths; of open bins, from ±88.
    centres = np.r_[-88, (edges[1:] + edges[:-1]) / 2, 88]
    half_widths = np.r_[1, np.diff(edges) / 2, 1]
    number = np.searchsorted(edges, logits, side="right")
    offset = (logits - centres[number]) / half_widths[number]
    powers = np.polynomial.chebyshev.chebvander(np.clip(offset, -1, 1), 5)[:, 2:]
    by_label = np.stack([1 - labels, labels], axis=1)
    columns = np.concatenate([by_label, by_label * offset[:, None], powers], axis=1)
    sizes = np.concatenate([by_label, np.abs(columns[:, 2:4]), np.ones_like(powers)], axis=1)
    expected, scale = np.zeros((2, *sums.shape))
    np.add.at(expected, number, columns)
    np.add.at(scale, number, sizes)
    np.testing.assert_array_equal(sums[:, :2], expected[:, :2])
    assert np.max(np.abs(sums - expected) / np.maximum(scale, TINY)) <= 1e-6
