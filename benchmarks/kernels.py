"""Time of the ILPS kernel beside a sigmoid and rivals: `./dev run python benchmarks/kernels.py`.

For each number of rows and of knots and each dtype of the logits, for the kernel and for the layer
as a user calls it: the time of the forward pass and of forward +
backward (gradients by the logits and by the values at the knots), all compiled by XLA; the bytes
that must move (logits and upstream gradient in, curve and gradient out); the share of the bandwidth
that a copy reaches in the same process; the ratio to a sigmoid in the same round, its median and
range; and the largest error of the gradient by the values against float64, relative to its largest
entry. All take turns; medians.

`--cores 1` measures CPU time on one core, which is steady even on a busy machine.
TensorFlow Lattice needs an environment of its own (`pip install tensorflow tf-keras
tensorflow-lattice`), and so does PyTorch (`pip install torch numpy`); `--lattice` and `--torch`
name their Pythons. Without, their lines are left out. PyTorch runs `searchsorted` and reads knots
and values by index, operation by operation; its sigmoid and copy likewise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_KNOTS = [20, 100]
COPY, SIGMOID = "copy", "sigmoid"
NUM_BYTES = {"float32": 4, "bfloat16": 2}
Function = Callable[..., Any]


@dataclass(frozen=True)
class Part:
    """What one process measures: formulas of one library, and how that library runs them.

    Args:
        device: What it runs on, in words.
        formulas: Name → curve of logits, knots and values, of the logits' dtype or float32.
        with_gradients: A formula → the function of logits, knots, values and upstream gradient that
            gives the curve and the gradients by logits and values.
        compiled: A function → the same under XLA.
        tensor: Array and dtype → tensor on the device.
        wait: Returns once a result has been computed.
        array: Tensor → NumPy array.
    """

    device: str
    formulas: dict[str, Function]
    with_gradients: Callable[[Function], Function]
    compiled: Callable[[Function], Function]
    tensor: Callable[[np.ndarray, str], Any]
    wait: Callable[[Any], Any]
    array: Callable[[Any], np.ndarray] = np.asarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--dtypes", nargs="+", choices=NUM_BYTES, default=list(NUM_BYTES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--libraries", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--lattice", metavar="PYTHON", help="Python with tensorflow_lattice")
    parser.add_argument("--torch", metavar="PYTHON", help="Python with torch")
    parser.add_argument("--knots", type=int, nargs="+", default=NUM_KNOTS)
    parser.add_argument("--part", choices=PARTS, help="internal: measure this, in this process")
    arguments = parser.parse_args()
    if arguments.part:
        measure(arguments)
        return
    for name in arguments.libraries:
        if name in APART and not getattr(arguments, name):
            print(f"\n{name} is left out: `--{name}` names no Python that has it.")
        else:
            print_part(name, arguments)


def print_part(name: str, arguments: argparse.Namespace) -> None:
    python = getattr(arguments, name) if name in APART else sys.executable
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    settings |= {"TF_USE_LEGACY_KERAS": "1"} if name in APART else {"KERAS_BACKEND": name}
    if arguments.device == "cpu":
        settings |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python, __file__, *sys.argv[1:], "--part", name],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        if "device" in line:
            print(f"\n{name} on {line['device']}, {arguments.cores} cores")
            print(f"{'':<58}{'MB':>8}{'ms':>10}{'ns/row':>8}{'of copy':>9}", end="")
            print(f"{'/sigmoid':>9} (range)".ljust(24), "error")
        elif "rows" in line:
            print(f"{line['rows']:,} rows, {line['dtype']}, {line['knots']} knots")
        else:
            error = f"{line['error']:.1e}" if line["error"] is not None else ""
            print(f"  {line['name']:<56}{line['megabytes']:>8.1f}{line['ms']:>10.3f}", end="")
            print(f"{line['ns_a_row']:>8.2f}{line['share_of_copy']:>9.0%}", end="")
            print("{:>9.2f} ({:.2f}–{:.2f})".format(*line["to_sigmoid"]).ljust(24), error)
    if done.returncode:
        print(f"{name} ended early: exit status {done.returncode}.")


def measure(arguments: argparse.Namespace) -> None:
    if hasattr(os, "sched_setaffinity"):
        # Before the libraries start their threads, one for each core.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-arguments.cores :])
    on_one_core = arguments.device == "cpu" and arguments.cores == 1
    clock = time.process_time if on_one_core else time.perf_counter
    for num_knots in arguments.knots:
        part = PARTS[arguments.part](num_knots)
        say(device=part.device)
        for dtype in arguments.dtypes:
            for num_rows in map(int, arguments.rows):
                say(rows=num_rows, dtype=dtype, knots=num_knots)
                measure_rows(part, num_rows, dtype, num_knots, arguments.rounds, clock)


def measure_rows(
    part: Part,
    num_rows: int,
    dtype: str,
    num_knots: int,
    num_rounds: int,
    clock: Callable[[], float],
) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(-1.2, 1.7, num_rows).astype(np.float32)
    upstream = generator.normal(size=num_rows).astype(np.float32)
    levels = (np.arange(num_knots) + 0.5) / num_knots
    knots = np.quantile(logits[:100_000], levels)
    arrays = [logits, knots.astype(np.float32), 0.8 * knots - 0.2, upstream]
    dtypes = (dtype, "float32", "float32", "float32")
    tensors = [part.tensor(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
    passes: dict[tuple[str, str], Function] = {}
    for name, formula in part.formulas.items():
        passes[name, "forward"] = part.compiled(formula)
        if name != COPY:
            passes[name, "forward + backward"] = part.compiled(part.with_gradients(formula))
    errors = {}
    for key, function in passes.items():  # compiles
        inputs = tensors[:3] if key[1] == "forward" else tensors
        result = part.wait(function(*inputs))
        if key[1] != "forward" and key[0] != SIGMOID:
            given = [part.array(tensor) for tensor in tensors]
            errors[key] = gradient_error(part.array(result[2]), given, key[0])
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in passes}
    for _ in range(num_rounds):
        for key, function in passes.items():
            start = clock()
            part.wait(function(*(tensors[:3] if key[1] == "forward" else tensors)))
            seconds[key].append(clock() - start)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    ratios = {
        key: [a / b for a, b in zip(values, seconds[SIGMOID, key[1]], strict=True)]
        for key, values in seconds.items()
    }
    item = NUM_BYTES[dtype]
    bandwidth = 2 * item * num_rows / median[COPY, "forward"]
    for (name, direction), value in median.items():
        round_ratios = ratios[name, direction]
        # The curve is float32 but for the sigmoid and the copy, which keep the logits' dtype.
        out = item if name in (COPY, SIGMOID) else 4
        num_bytes = num_rows * (item + out + (0 if direction == "forward" else out + item))
        say(
            name=f"{name}, {direction}",
            megabytes=num_bytes / 1e6,
            ms=1e3 * value,
            ns_a_row=1e9 * value / num_rows,
            share_of_copy=num_bytes / value / bandwidth,
            to_sigmoid=[statistics.median(round_ratios), min(round_ratios), max(round_ratios)],
            error=errors.get((name, direction)),
        )


def gradient_error(by_values: np.ndarray, inputs: list[np.ndarray], name: str) -> float | None:
    """Largest error relative to the largest entry; None for kernels with knots of their own."""
    if name in OWN_KNOTS:
        return None
    logits, knots, _, upstream = (array.astype(np.float64) for array in inputs)
    num_knots = len(knots)
    segment = np.clip(np.searchsorted(knots, logits, side="right") - 1, 0, num_knots - 2)
    share = (logits - knots[segment]) / np.diff(knots)[segment]
    if name in CONSTANT_ENDS:
        share = np.clip(share, 0, 1)
    expected = np.bincount(segment, upstream * (1 - share), num_knots)
    expected += np.bincount(segment + 1, upstream * share, num_knots)
    return float(np.abs(by_values - expected).max() / np.abs(expected).max())


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def tensorflow_part(num_knots: int) -> Part:
    import tensorflow as tf
    import tensorflow_probability as tfp

    def tfp_interp(logits: Any, knots: Any, values: Any) -> Any:
        logits = tf.cast(logits, tf.float32)
        return tfp.math.interp_regular_1d_grid(logits, knots[0], knots[-1], values)

    formulas = {**common_formulas(num_knots), "tfp.math.interp_regular_1d_grid": tfp_interp}
    return with_tensorflow(tf, formulas)


def lattice_part(num_knots: int) -> Part:
    import tensorflow as tf
    import tensorflow_lattice as tfl

    layers = {}

    def lattice(logits: Any, knots: Any, values: Any) -> Any:
        if "layer" not in layers:
            with tf.init_scope():
                layers["layer"] = tfl.layers.PWLCalibration(
                    np.linspace(-6, 4, knots.shape[0]), monotonicity="increasing"
                )
                layers["layer"].build((None, 1))
        column = tf.cast(logits, tf.float32)[:, None]
        return layers["layer"](column)[:, 0]

    def weights() -> list[Any]:
        return layers["layer"].trainable_variables if layers else []

    formulas = {
        COPY: lambda logits, knots, values: -logits,
        SIGMOID: lambda logits, knots, values: tf.sigmoid(logits),
        LATTICE: lattice,
    }
    return with_tensorflow(tf, formulas, weights)


def torch_part(num_knots: int) -> Part:
    import torch

    def interpolation(logits: Any, knots: Any, values: Any) -> Any:
        logits = logits.float()
        left = (torch.searchsorted(knots, logits, right=True) - 1).clamp(0, len(knots) - 2)
        knot, value = knots[left], values[left]
        return value + (logits - knot) / (knots[left + 1] - knot) * (values[left + 1] - value)

    def with_gradients(formula: Function) -> Function:
        def curve_and_gradients(logits: Any, knots: Any, values: Any, upstream: Any) -> Any:
            sources = [tensor.detach().requires_grad_() for tensor in (logits, values)]
            curve = formula(sources[0], knots, sources[1])
            upstream = upstream.to(curve.dtype)
            return curve, *torch.autograd.grad(curve, sources, upstream, allow_unused=True)

        return curve_and_gradients

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))

    def wait(result: Any) -> Any:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return result

    return Part(
        device=f"{device.type} ({device_name()}), PyTorch {torch.__version__}",
        formulas={
            COPY: lambda logits, knots, values: -logits,
            SIGMOID: lambda logits, knots, values: torch.sigmoid(logits),
            "PyTorch, searchsorted": interpolation,
        },
        with_gradients=with_gradients,
        compiled=lambda function: function,
        tensor=lambda array, dtype: torch.tensor(array).to(device, getattr(torch, dtype)),
        wait=wait,
        array=lambda tensor: tensor.detach().float().cpu().numpy(),
    )


def with_tensorflow(
    tf: Any, formulas: dict[str, Function], weights: Callable[[], list[Any]] = list
) -> Part:
    def with_gradients(formula: Function) -> Function:
        def curve_and_gradients(logits: Any, knots: Any, values: Any, upstream: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([logits, values])
                curve = formula(logits, knots, values)
            sources = [logits, weights()[0] if formula.__name__ == "lattice" else values]
            upstream = tf.cast(upstream, curve.dtype)
            gradients = tape.gradient(
                curve, sources, output_gradients=upstream, unconnected_gradients="zero"
            )
            return curve, *map(tf.convert_to_tensor, gradients)

        return curve_and_gradients

    def wait(result: Any) -> Any:
        tf.test.experimental.sync_devices()
        return result

    devices = tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("CPU")
    return Part(
        device=f"{devices[0].device_type} ({device_name()}), TensorFlow {tf.__version__}",
        formulas=formulas,
        with_gradients=with_gradients,
        compiled=lambda function: tf.function(function, jit_compile=True),
        tensor=lambda array, dtype: tf.cast(tf.constant(array), dtype),
        wait=wait,
    )


def jax_part(num_knots: int) -> Part:
    import jax

    def jnp_interp(logits: Any, knots: Any, values: Any) -> Any:
        return jax.numpy.interp(logits.astype("float32"), knots, values)

    def with_gradients(formula: Function) -> Function:
        def curve_and_gradients(logits: Any, knots: Any, values: Any, upstream: Any) -> Any:
            curve, pull_back = jax.vjp(
                lambda logits, values: formula(logits, knots, values), logits, values
            )
            return curve, *pull_back(upstream.astype(curve.dtype))

        return curve_and_gradients

    device = jax.devices()[0]
    return Part(
        device=f"{device.device_kind} ({device_name()}), JAX {jax.__version__}",
        formulas={**common_formulas(num_knots), "jnp.interp": jnp_interp},
        with_gradients=with_gradients,
        compiled=jax.jit,
        tensor=lambda array, dtype: jax.device_put(jax.numpy.asarray(array, dtype)),
        wait=jax.block_until_ready,
    )


def common_formulas(num_knots: int) -> dict[str, Function]:
    from keras import ops

    from keras_calibration._ops import piecewise_linear
    from keras_calibration.layers import ILPS

    layer = ILPS(num_knots, "sigmoid")
    layer.build((None, 1))

    def called(logits: Any, knots: Any, values: Any) -> Any:
        others = layer.non_trainable_variables[1:]
        return layer.stateless_call([values], [knots, *others], logits)[0]

    def ilps(logits: Any, knots: Any, values: Any) -> Any:
        return piecewise_linear(ops.cast(logits, "float32"), knots, values)

    def plain(logits: Any, knots: Any, values: Any) -> Any:
        logits = ops.cast(logits, "float32")
        right_of = ops.searchsorted(knots, logits, side="right")
        left = ops.clip(right_of - 1, 0, knots.shape[0] - 2)
        knot, value = ops.take(knots, left), ops.take(values, left)
        rise, run = ops.take(values, left + 1) - value, ops.take(knots, left + 1) - knot
        return value + (logits - knot) / run * rise

    return {
        COPY: lambda logits, knots, values: -logits,
        SIGMOID: lambda logits, knots, values: ops.sigmoid(logits),
        "ops.piecewise_linear": ilps,
        "ILPS, a layer": called,
        "the plain formula": plain,
    }


def device_name() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else "unknown"
    return "unknown"


LATTICE = "TensorFlow Lattice's PWLCalibration"
OWN_KNOTS = (LATTICE, "tfp.math.interp_regular_1d_grid")
CONSTANT_ENDS = ("jnp.interp",)
PARTS = {
    "tensorflow": tensorflow_part,
    "jax": jax_part,
    "lattice": lattice_part,
    "torch": torch_part,
}
# In environments of their own.
APART = ("lattice", "torch")


if __name__ == "__main__":
    main()
