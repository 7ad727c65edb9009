"""The kernels, compiled for GPUs that are not there: bytes, kernels and instructions in bounds."""

import importlib

import pytest

from gpu import compiler, programs

pytestmark = pytest.mark.skipif(not compiler.is_available(), reason=compiler.MISSING)

# Name → bytes over those that must move, kernels over rows, and machine instructions a row, each at
# most. XLA needs a second pass over the rows for sums by line, and keeps a byte of each row between
# the two with 100 knots, four with the summary. Twenty sums over all rows take three passes.
BOUNDS = {
    "ILPS, 20 knots": (1.01, 1, 48),
    "ILPS, 20 knots, with gradient": (2.01, 3, 270),
    "ILPS, 100 knots": (1.01, 1, 70),
    "ILPS, 100 knots, with gradient": (1.78, 2, 165),
    "summary of logits": (2.7, 2, 280),
    "sums by field value": (1.14, 1, 115),
}
# For GPUs other than Hopper's, XLA keeps some comparisons of each row, or its bin, in memory too.
BOUNDS_OF_OTHERS = {
    "ILPS, 100 knots, with gradient": (2.11, 2, 185),
    "summary of logits": (3.7, 2, 300),
}
FORBIDDEN = {"while", "sort", "custom-call", "conditional"}


def cases():
    """GPU, rows, dtype and kernel; those of H200, 1e7 rows and float32 come first."""
    return [
        (gpu, num_rows, dtype, name)
        for gpu in ("h200", "h100", "a100", "b200")
        for num_rows in (10_000_000, 100_000_000)
        for dtype in ("float32", "bfloat16")
        for name in BOUNDS
        if dtype == "float32" or name.startswith("ILPS")
    ]


def assert_fast(program):
    """No loop, no sort, no library, no additions by compare-and-swap, hardly a register spilled."""
    assert not program.kinds & FORBIDDEN
    for code in program.code.values():
        assert not [operation for operation in code.ptx if ".cas" in operation]
        assert code.spilled_bytes <= 32


@pytest.mark.quick_cases(len(BOUNDS))
@pytest.mark.parametrize(("gpu", "num_rows", "dtype", "name"), cases())
def test_a_kernel_keeps_to_its_bounds(gpu, num_rows, dtype, name):
    kernel = programs.kernels(num_rows, dtype)[name]
    program = compiler.compile_for(gpu, programs.lowered(kernel))
    assert_fast(program)
    for row_part in program.over_rows(num_rows):
        # Rounded operation by operation, as on a CPU, where tests find that the curve never falls.
        inexact = ("fma.rn", ".approx", "div.full")
        operations = program.code_of(row_part).ptx
        assert not [o for o in operations if any(part in o for part in inexact)]
    bounds = BOUNDS if gpu in ("h200", "h100") else {**BOUNDS, **BOUNDS_OF_OTHERS}
    ratio, num_kernels, num_instructions = bounds[name]
    assert program.num_bytes / (kernel.bytes_a_row * num_rows) <= ratio
    assert len(program.over_rows(num_rows)) <= num_kernels
    assert program.instructions_a_row(num_rows) <= num_instructions


# What is no kernel over rows: it needs no more than to run on the GPU alone, without a wait for the
# host. Of a result, Keras asks at every step.
WHOLE = {
    "result of a metric": lambda: programs.lowered_result(),
    "calibrated model that serves": lambda: programs.lowered_serving(8192),
    "training step of the head": lambda: programs.lowered_training_step(8192),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_program_is_fast(name):
    assert_fast(compiler.compile_for("h200", WHOLE[name]()))


def test_columns_stacked_as_for_a_cpu_would_be_seen(monkeypatch):
    module = importlib.import_module("keras_calibration._ops.sums_by_cell")
    monkeypatch.setattr(module, "runs_on_gpu", lambda: False)
    kernel = programs.kernels(10_000_000)["summary of logits"]
    program = compiler.compile_for("h200", programs.lowered(kernel))
    assert program.num_bytes > 9 * kernel.bytes_a_row * 10_000_000
