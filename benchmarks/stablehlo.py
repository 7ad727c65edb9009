"""Runs packed programs where there is JAX, on its device: `python gpu_programs.pyz`.

`./dev gpu python benchmarks/gpu_programs.py --pack gpu_programs.pyz` packs this file with the
kernels as TensorFlow and JAX lower them for a GPU (StableHLO). On the machine that the file is
carried to, JAX and NumPy are enough. For each program the bytes that must move, the time of a
run (of many that are launched one after the other, until the last has ended; medians of rounds in
turns), the share of the bandwidth of a copy, the ratio to a sigmoid of the same pass, the
prediction, and the largest difference from what the same program gives on the machine's CPU,
relative to the largest entry. The tables are Markdown.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
import zipfile
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

MANIFEST = "programs.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path(sys.argv[0]))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--check", type=float, default=1e7, help="at most so many rows are checked")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), JAX {jax.__version__}")
    with zipfile.ZipFile(arguments.programs) as packed:
        groups: dict[str, list[Program]] = {}
        for entry in json.loads(packed.read(MANIFEST)):
            groups.setdefault(entry["group"], []).append(
                Program(entry, packed.read(entry["file"]).decode(), device)
            )
    for title, programs in groups.items():
        print_group(title, programs, arguments)


def print_group(title: str, programs: "list[Program]", arguments: argparse.Namespace) -> None:
    """Times the programs of one size, dtype and backend in turns."""
    drawn: dict[str, Any] = {}
    arrays = [program.arguments(drawn) for program in programs]
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(arguments.rounds):
        for program, given, seconds in zip(programs, arrays, times, strict=True):
            seconds.append(program.seconds(given, arguments.launches))
    median = {
        program.name: statistics.median(seconds)
        for program, seconds in zip(programs, times, strict=True)
    }
    bandwidth = programs[0].num_bytes / median[programs[0].name]
    print(f"\n{title}; a {programs[0].name} moves {bandwidth / 1e9:.0f} GB/s\n")
    print("| program | MB | µs | of copy | / sigmoid | predicted µs | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for program, given in zip(programs, arrays, strict=True):
        seconds = median[program.name]
        sigmoid = median.get("sigmoid with gradient" if "gradient" in program.name else "sigmoid")
        is_checked = program.num_rows <= arguments.check
        difference = f"{program.difference(given):.1e}" if is_checked else ""
        print(
            f"| {program.name} | {program.num_bytes / 1e6:.0f} | {1e6 * seconds:.1f} "
            f"| {program.num_bytes / seconds / bandwidth:.0%} "
            f"| {f'{seconds / sigmoid:.2f}' if sigmoid else ''} "
            f"| {program.predicted} | {difference} |",
            flush=True,
        )


class Program:
    """A packed program, compiled for a device.

    Args:
        entry: Its entry in the manifest.
        stablehlo: Its text.
        device: The device of JAX to run on.
    """

    def __init__(self, entry: dict[str, Any], stablehlo: str, device: Any) -> None:
        self.name: str = entry["name"]
        self.num_rows: int = entry["num_rows"]
        self.num_bytes: int = entry["num_bytes"]
        device_lines = [
            seconds
            for gpu, seconds in entry["predicted"].items()
            if gpu.upper() in device.device_kind.upper()
        ]
        self.predicted: str = device_lines[0] if device_lines else ""
        self._specs: list[tuple[str, list[int], str]] = entry["arguments"]
        self._stablehlo = stablehlo
        self._device = device
        self._compiled = compiled(stablehlo, device)

    def arguments(self, drawn: dict[str, Any]) -> list[Any]:
        """Arguments of a click model, on the device; those drawn before are taken again."""
        for name, shape, dtype in self._specs:
            key = f"{name} {shape} {dtype}"
            if key not in drawn:
                array = jax.numpy.asarray(draw(name, shape, np.random.default_rng(0)), dtype)
                drawn[key] = jax.device_put(array, self._device)
        return [drawn[f"{name} {shape} {dtype}"] for name, shape, dtype in self._specs]

    def seconds(self, arguments: list[Any], num_launches: int) -> float:
        """Time of a run, of many that wait for the device only at the end."""
        jax.block_until_ready(run(self._compiled, arguments))
        start = time.perf_counter()
        for _ in range(num_launches):
            outputs = run(self._compiled, arguments)
        jax.block_until_ready(outputs)
        return (time.perf_counter() - start) / num_launches

    def difference(self, arguments: list[Any]) -> float:
        """The largest difference from the CPU's outputs, relative to their largest entry."""
        cpu = jax.devices("cpu")[0]
        expected = run(compiled(self._stablehlo, cpu), [jax.device_put(a, cpu) for a in arguments])
        pairs = [
            [np.asarray(output, "float64") for output in pair]
            for pair in zip(run(self._compiled, arguments), expected, strict=True)
        ]
        return max(float(np.abs(a - b).max() / (np.abs(b).max() or 1)) for a, b in pairs)


def draw(name: str, shape: list[int], generator: np.random.Generator) -> np.ndarray:
    """Values for an argument of a kernel, as its name says."""
    if name in ("knots", "values"):
        places = (np.arange(shape[0]) + 1) / (shape[0] + 1)
        return (np.log(places) - np.log1p(-places)) * (1 if name == "knots" else 0.9)
    if name == "ids":
        return generator.integers(0, 500, shape)
    if name == "labels":
        return (generator.random(shape, "float32") < 0.3).astype("float32")
    if name in ("predictions", "weights"):
        return generator.random(shape, "float32")
    spread, mean = (1.7, -1.2) if name == "logits" else (1.0, 0.0)
    return generator.standard_normal(shape, "float32") * np.float32(spread) + np.float32(mean)


def compiled(stablehlo: str, device: Any) -> Any:
    """The program for a device."""
    return device.client.compile_and_load(
        stablehlo.encode(), xla_client.DeviceList((device,)), xla_client.CompileOptions()
    )


def run(program: Any, arguments: list[Any]) -> list[Any]:
    """The outputs, which may not be there yet."""
    results = program.execute_sharded(arguments).disassemble_into_single_device_arrays()
    return [parts[0] for parts in results]


if __name__ == "__main__":
    main()
