"""All measurements on a GPU: `KERAS_BACKEND=jax python benchmarks/on_gpu.py`.

On a machine with a GPU and JAX: the kernels, ways to sum, a training step with head and metric,
`fit_head`, and the tests of kernels and metrics with the reasons of failures. By the times of
earlier runs on an H100 with 16 cores, this should take about four minutes, half of them for the
tests. It has not run there in this form. `--parts` selects some. More: `--dtypes float32 bfloat16`,
`--batches 8192 65536`, `--fit 200000 1000000`, `--tests tests/_ops tests/metrics tests/layers`.

A kernel's time is that of many runs launched one after the other, until the last has ended; medians
of rounds in turns. For each: the share of the bandwidth of a copy, the ratio to a sigmoid of the
same pass, and the largest difference from the same kernel on the machine's CPU, relative to the
largest entry. The tables are Markdown.

The package's folder and its dependencies are enough; TensorFlow is not needed, except by a few of
the tests. Sizes for a CPU: `--rows 1e5 --steps 4 --fit 2000 --tests tests/_ops/test_folds.py`.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
# `gpu.compiler` and the tests set it to "cpu" where it is not set.
os.environ.setdefault("JAX_PLATFORMS", "")

import jax
import keras
import numpy as np

import keras_calibration as kc
from gpu import programs

ROOT = Path(__file__).parents[1]
PARTS = ("kernels", "sums", "steps", "fit", "tests")
TESTS = ["tests/_ops", "tests/metrics"]
VOCABULARIES = {"site_id": 5000, "ad": 20000, "country": 100, "hour": 24}
Function = Callable[..., Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e7, 1e8])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[8192])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fit", type=int, nargs="+", default=[200_000])
    parser.add_argument("--tests", nargs="+", default=TESTS)
    arguments = parser.parse_args()
    device = jax.devices()[0]
    versions = f"JAX {jax.__version__}, Keras {keras.__version__}"
    print(f"{device.device_kind} ({device.platform}), {versions}, {os.cpu_count()} cores")
    for part in arguments.parts:
        start = time.perf_counter()
        globals()[f"print_{part}"](arguments)
        print(f"\n({part}: {time.perf_counter() - start:.0f} s)", flush=True)


def print_kernels(arguments: argparse.Namespace) -> None:
    """The package's kernels."""
    for num_rows in map(int, arguments.rows):
        for dtype in arguments.dtypes:
            print(f"\n{num_rows:,} rows, {dtype}\n")
            print("| kernel | µs | of copy | / sigmoid | difference |")
            print("| --- | ---: | ---: | ---: | ---: |")
            kernels = programs.kernels(num_rows, dtype)
            if num_rows > 1e7:
                kernels.pop("sums by class", None)  # labels and logits of ten classes: 8 GB
            calls = {name: call(kernel) for name, kernel in kernels.items()}
            seconds = medians(calls, arguments.rounds)
            speed = kernels["copy"].bytes_a_row / seconds["copy"]
            for name, kernel in kernels.items():
                rival = "sigmoid with gradient" if "with gradient" in name else "sigmoid"
                share = kernel.bytes_a_row / seconds[name] / speed
                ratio = seconds[name] / seconds[rival]
                checked = num_rows <= 1e7 and f"{difference(kernel):.1e}"
                print(f"| {name} | {1e6 * seconds[name]:.0f} | {share:.0%} ", end="")
                print(f"| {ratio:.2f} | {checked or ''} |", flush=True)


def print_sums(arguments: argparse.Namespace) -> None:
    """Sums by field value and the summary of logits in other numbers of parts."""
    num_rows = int(max(arguments.rows))
    print(f"\n{num_rows:,} rows, parts of each cell\n")
    print("| sums | parts | µs |\n| --- | ---: | ---: |")
    kernels = programs.kernels(num_rows)
    module: Any = importlib.import_module("keras_calibration._ops.sums_by_cell")
    before = module._MOST_PARTS_ON_GPU, module._MOST_CELLS_ON_GPU
    for name in ("sums by field value", "summary of logits"):
        calls = {}
        for parts in (1, 32, 256, 1024):
            module._MOST_PARTS_ON_GPU, module._MOST_CELLS_ON_GPU = parts, 1 << 20
            calls[parts] = call(kernels[name])
            jax.block_until_ready(calls[parts]())
        for parts, seconds in medians(calls, arguments.rounds).items():
            print(f"| {name} | {parts} | {1e6 * seconds:.0f} |", flush=True)
    module._MOST_PARTS_ON_GPU, module._MOST_CELLS_ON_GPU = before


def print_steps(arguments: argparse.Namespace) -> None:
    """A training step of a bare model, with Keras' AUC, with a head, with a metric, with both."""
    names = {
        "nothing more": (False, None),
        "Keras' AUC": (False, "auc"),
        "NeuralCalibration": (True, None),
        "CalibratedLogLoss": (False, kc.metrics.CalibratedLogLoss()),
        "both": (True, kc.metrics.CalibratedLogLoss()),
    }
    print("\n| in the model | batch | ms a step | |\n| --- | ---: | ---: | ---: |")
    for batch in arguments.batches:
        x, y = click_log(arguments.steps * batch)
        models = {name: click_model(*parts) for name, parts in names.items()}

        def fit(model: keras.Model, x: Any = x, y: Any = y, batch: int = batch) -> None:
            model.fit(x, y, batch_size=batch, epochs=1, verbose=0)

        calls = {name: lambda model=model: fit(model) for name, model in models.items()}
        seconds = medians(calls, 2 * len(calls), num_launches=1)
        for name, value in seconds.items():
            more = value / seconds["nothing more"] - 1
            print(f"| {name} | {batch:,} | {1e3 * value / arguments.steps:.2f} | {more:+.0%} |")


def print_fit(arguments: argparse.Namespace) -> None:
    """`fit_head`, the first time and again."""
    print("\n| fit_head, rows | s | again |\n| --- | ---: | ---: |")
    model = click_model(has_head=True, metric=None)
    for num_rows in arguments.fit:
        x, y = click_log(num_rows)
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            kc.fit_head(model, x, y, verbose=0)
            seconds.append(time.perf_counter() - start)
        print(f"| {num_rows:,} | {seconds[0]:.1f} | {seconds[1]:.1f} |", flush=True)


def print_tests(arguments: argparse.Namespace) -> None:
    """The tests, on this device."""
    options = ["-q", "-rfE", "--tb=line", "-m", "not slow", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("xdist"):
        options += ["-n", str(max(1, (os.cpu_count() or 1) - 2))]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # This process has reserved most of the device's memory.
    settings = {"PYTHONPATH": paths, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments.tests],
        cwd=ROOT,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        text=True,
    )
    print("\n" + done.stdout[-20_000:])


def call(kernel: programs.Kernel, device: Any = None) -> Function:
    """A kernel under `jax.jit` with arguments of a click model on a device."""
    device = device or jax.devices()[0]
    generator = np.random.default_rng(0)
    drawn = {
        name: jax.device_put(jax.numpy.asarray(draw(name, shape, generator), dtype), device)
        for name, (shape, dtype) in kernel.arguments.items()
    }
    # A function of its own: JAX remembers what it has traced.
    compiled = jax.jit(lambda *inputs: kernel.function(*inputs))
    return lambda: compiled(*drawn.values())


def medians(
    calls: dict[Any, Function], num_rounds: int, num_launches: int | None = None
) -> dict[Any, float]:
    """Seconds of a run of each, in turns, after one that compiles."""
    launches = {}
    for name, function in calls.items():
        jax.block_until_ready(function())
        start = time.perf_counter()
        jax.block_until_ready(function())
        launches[name] = num_launches or max(1, min(40, int(0.1 / (time.perf_counter() - start))))

    def rounds() -> Iterator[tuple[Any, float]]:
        for number in range(num_rounds):
            # Every round starts with another function.
            first = number % len(calls)
            for name, function in (list(calls.items()) * 2)[first : first + len(calls)]:
                start = time.perf_counter()
                for _ in range(launches[name]):
                    result = function()
                jax.block_until_ready(result)
                yield name, (time.perf_counter() - start) / launches[name]

    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for name, value in rounds():
        seconds[name].append(value)
    return {name: statistics.median(values) for name, values in seconds.items()}


def difference(kernel: programs.Kernel) -> float:
    """The largest difference from the CPU's outputs, relative to their largest entry."""
    actual, on_cpu = (
        jax.tree.leaves(call(kernel, device)()) for device in (None, jax.devices("cpu")[0])
    )
    pairs = [[np.asarray(a, "float64") for a in pair] for pair in zip(actual, on_cpu, strict=True)]
    return max(float(np.abs(a - b).max() / (np.abs(b).max() or 1)) for a, b in pairs)


def draw(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Values for an argument of a kernel, as its name says."""
    if name in ("knots", "values"):
        places = (np.arange(shape[0]) + 1) / (shape[0] + 1)
        return (np.log(places) - np.log1p(-places)) * (1 if name == "knots" else 0.9)
    if name == "ids":
        return generator.integers(0, programs.NUM_VALUES, shape)
    if name == "labels":
        return (generator.random(shape, "float32") < 0.3).astype("float32")
    if name == "predictions":
        return generator.random(shape, "float32")
    spread, mean = (1.7, -1.2) if name == "logits" else (1.0, 0.0)
    return generator.standard_normal(shape, "float32") * np.float32(spread) + np.float32(mean)


def click_log(num_rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ids of four fields, and clicks."""
    generator = np.random.default_rng(0)
    x = {name: generator.integers(0, n, num_rows) for name, n in VOCABULARIES.items()}
    logits = -2.5 + sum(generator.normal(0, 0.4, n)[x[name]] for name, n in VOCABULARIES.items())
    clicks = generator.random(num_rows) < 1 / (1 + np.exp(-logits))
    return {name: ids.astype("int32") for name, ids in x.items()}, clicks.astype("float32")


def click_model(has_head: bool, metric: Any) -> keras.Model:
    """Embeddings of the four fields, two hidden layers, and a head if asked for."""
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in VOCABULARIES}
    columns = [keras.layers.Embedding(n, 16)(inputs[name]) for name, n in VOCABULARIES.items()]
    hidden = keras.layers.Concatenate()(columns)
    for units in (256, 128):
        hidden = keras.layers.Dense(units, "relu")(hidden)
    logit = keras.layers.Dense(1)(hidden)
    if has_head:
        network = kc.layers.FieldNetwork({"site_id": VOCABULARIES["site_id"]})
        head = kc.layers.NeuralCalibration(kc.layers.ILPS(), network)
        logit = head(logit, {"site_id": inputs["site_id"]})
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(logit))
    metrics = [metric] if metric else []
    model.compile("adam", "binary_crossentropy", metrics=metrics, jit_compile=True)
    return model


if __name__ == "__main__":
    main()
