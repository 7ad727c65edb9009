"""TensorFlow's programs on JAX's device: `./dev run python benchmarks/stablehlo.py`.

What TensorFlow lowers the kernels to (StableHLO, `experimental_get_compiler_ir`) is compiled and
run by JAX's runtime, on a GPU where JAX has one, without a GPU build of TensorFlow: ILPS forward
and forward + backward, and the update of the calibrated log loss's summary, beside a copy and a
sigmoid. For each the bytes that must move, the time of a run (medians of rounds in turns, until the
outputs are there), the share of the copy's bandwidth, and the time over that of its bytes at that
bandwidth. The first line says which device it was; the last column is the largest difference from
what TensorFlow computes on the CPU, relative to the largest entry.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
import tensorflow as tf
from jaxlib import xla_client

from keras_calibration.ops import piecewise_linear
from keras_calibration.ops.logit_moments import logit_moments

NUM_KNOTS = 20


@dataclass(frozen=True)
class Kernel:
    """A function of tensors, its arguments, and the bytes of a row that must move."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    bytes_a_row: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    device = jax.devices()[0]
    # TensorFlow must lower for that device, not for those that it has itself.
    module = sys.modules["keras_calibration.ops.logit_moments"]
    module.runs_on_gpu = lambda: device.platform == "gpu"
    print(f"{device.device_kind} ({device.platform}), JAX {jax.__version__}, TF {tf.__version__}")
    for num_rows in map(int, arguments.rows):
        programs = {name: Program(kernel, device) for name, kernel in kernels(num_rows).items()}
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(arguments.rounds):
            for name, program in programs.items():
                times[name].append(program.seconds())
        median = {name: statistics.median(values) for name, values in times.items()}
        bandwidth = programs["copy"].num_bytes(num_rows) / median["copy"]
        print(f"\n{num_rows:,} rows, float32; a copy moves {bandwidth / 1e9:.0f} GB/s")
        print(f"{'':<26}{'MB':>8}{'ms':>10}{'of copy':>9}{'/ bytes':>9}{'difference':>12}")
        for name, program in programs.items():
            num_bytes = program.num_bytes(num_rows)
            share = num_bytes / median[name] / bandwidth
            print(
                f"{name:<26}{num_bytes / 1e6:>8.1f}{1e3 * median[name]:>10.3f}{share:>9.0%}"
                f"{1 / share:>9.2f}{program.difference():>12.1e}"
            )


def kernels(num_rows: int) -> dict[str, Kernel]:
    """Name → kernel, on logits of a click model."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1.2, 1.7, num_rows).astype("float32")
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(-logits))).astype("float32")
    upstream = generator.normal(size=num_rows).astype("float32")
    knots = np.quantile(logits, np.linspace(0, 1, NUM_KNOTS)).astype("float32")
    values = np.sort(knots + generator.normal(0, 0.1, NUM_KNOTS).astype("float32"))

    def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
        def both(of_rows: Any, logits: Any, *parameters: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch((logits, *parameters))
                outputs = function(logits, *parameters)
            return outputs, tape.gradient(outputs, (logits, *parameters), of_rows)

        return both

    def sigmoid(logits: Any) -> Any:
        return tf.sigmoid(logits)

    def curve(logits: Any, values: Any) -> Any:
        return piecewise_linear(logits, tf.constant(knots), values)

    def summary(labels: Any, logits: Any) -> Any:
        group = tf.zeros(tf.shape(logits), tf.int32)
        return logit_moments(labels, logits, tf.ones_like(logits), group, 1)

    return {
        # Of the negative: a program that returns its argument moves nothing.
        "copy": Kernel(lambda x: -x, (logits,), 8),
        "sigmoid": Kernel(sigmoid, (logits,), 8),
        "sigmoid with gradient": Kernel(with_gradient(sigmoid), (upstream, logits), 16),
        "ILPS": Kernel(curve, (logits, values), 8),
        "ILPS with gradient": Kernel(with_gradient(curve), (upstream, logits, values), 16),
        "summary of logits": Kernel(summary, (labels, logits), 8),
    }


class Program:
    """A kernel as TensorFlow lowers it, compiled by JAX's runtime.

    Args:
        kernel: The kernel.
        device: The device of JAX to run on.
    """

    def __init__(self, kernel: Kernel, device: Any) -> None:
        self.kernel = kernel
        function = tf.function(kernel.function, jit_compile=True, autograph=False)
        tensors = [tf.constant(argument) for argument in kernel.arguments]
        with tf.device("CPU:0"):
            # Run first: a trace of `experimental_get_compiler_ir` does not know of XLA.
            self._expected = [output.numpy() for output in tf.nest.flatten(function(*tensors))]
            lowered = function.experimental_get_compiler_ir(*tensors)(stage="stablehlo")
        self._compiled = device.client.compile_and_load(
            lowered.encode(), xla_client.DeviceList((device,)), xla_client.CompileOptions()
        )
        self._arguments = [jax.device_put(argument, device) for argument in kernel.arguments]

    def num_bytes(self, num_rows: int) -> int:
        """Bytes that must move."""
        return num_rows * self.kernel.bytes_a_row

    def run(self) -> list[Any]:
        """The outputs, once they are there."""
        results = self._compiled.execute_sharded(self._arguments)
        outputs = [parts[0] for parts in results.disassemble_into_single_device_arrays()]
        return [output.block_until_ready() for output in outputs]

    def seconds(self) -> float:
        """Time of a run."""
        self.run()
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def difference(self) -> float:
        """The largest difference from TensorFlow's outputs on the CPU, relative to the largest."""
        return max(
            float(np.max(np.abs(np.asarray(found) - expected)) / np.max(np.abs(expected)))
            for found, expected in zip(self.run(), self._expected, strict=True)
        )


if __name__ == "__main__":
    main()
