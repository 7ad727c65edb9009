"""What calibration costs in serving: `./dev run python benchmarks/serving.py`.

The quickstart's model and its base model alone, each exported as a SavedModel, loaded by the C
program of the tests through TensorFlow's C API, as a C++ server loads them, and run in turn: in
every round one after the other, so that the machine's load falls on all alike. Those under XLA run
in a process of their own, beside the base model as it is: they would slow the others down. The
table has medians over the rounds, for each batch size; a ratio is the median of the rounds' ratios
to the base model as Keras exports it. "XLA" is the same under XLA: `export_savedmodel(…,
jit_compile=True)`, and the base model in a `tf.function(jit_compile=True)`, which takes batches as
they come; so does "as they come", with `fill_up=False`. `--cores 1` keeps to one core.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "serving"), str(ROOT / "examples")]

import c_client  # noqa: E402

import keras_calibration as kc  # noqa: E402
import quickstart  # noqa: E402

# Runs between two looks at the clock: a few milliseconds.
NUM_RUNS = {1: 200, 32: 100, 1024: 10}
# Arguments of `export_savedmodel`.
KINDS: dict[str, dict[str, bool]] = {
    "": {},
    ", XLA": {"jit_compile": True},
    ", XLA, as they come": {"jit_compile": True, "fill_up": False},
}
OUTPUTS = ("probability", "uncalibrated_probability", "logit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--rows", type=int, default=60_000, help="of the click log to train on")
    parser.add_argument("--cores", type=int, help="processor cores to keep to; default: all")
    arguments = parser.parse_args()
    if c_client.find_compiler() is None:
        sys.exit(c_client.NO_COMPILER)
    table = kc.datasets.generate_click_log(arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = export_models(table, folder)
        if arguments.cores:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
        features, _ = table.part("test")
        paths = list(models)
        print(f"\n{'batch':>5}  {'model':<28} {'µs a batch':>11} {'ratio':>6} {'rows/s':>11}")
        for size in arguments.batch_sizes:
            rows = {name: column[:size] for name, column in features.items()}
            for group in (paths[:2], [paths[0], *paths[2:]]):
                taking_turns = {path: models[path] for path in group}
                seconds = time_models(taking_turns, rows, folder, arguments.rounds, size)
                print_times(group, seconds, size)


def print_times(paths: list[Path], seconds: np.ndarray, size: int) -> None:
    """The lines of models that took turns, from seconds (rounds, models); the first is 1."""
    ratios = np.median(seconds / seconds[:, :1], axis=0)
    for path, taken, ratio in zip(paths, np.median(seconds, axis=0), ratios, strict=True):
        print(
            f"{size:>5}  {path.name:<28} {1e6 * taken:>11.1f} {ratio:>6.3f} {size / taken:>11,.0f}"
        )


def export_models(table: Any, folder: Path) -> dict[Path, tuple[str, ...]]:
    """The base model alone and the calibrated model, as they are and under XLA.

    Returns:
        Folder of each SavedModel → its outputs; the base model as it is comes first.
    """
    base = quickstart.train_base_model(table, "Base model")
    model = quickstart.calibrate(table, base, folder / "runs", 0, "Calibration")
    rows, _ = table.part("test")
    models = {}
    for suffix, arguments in KINDS.items():
        jit_compile = "jit_compile" in arguments
        if arguments.get("fill_up", True):
            models[folder / f"base{suffix}"] = OUTPUTS[:1]
            export_base(base, folder / f"base{suffix}", jit_compile)
        models[folder / f"calibrated{suffix}"] = OUTPUTS
        kc.export_savedmodel(model, folder / f"calibrated{suffix}", rows, **arguments)
    return models


def export_base(base: keras.Model, path: Path, jit_compile: bool) -> None:
    """The base model alone, its output named as the calibrated model's."""
    import tensorflow as tf

    def serve(features: Any) -> dict[str, Any]:
        return {"probability": base(features, training=False)}

    function = tf.function(serve, jit_compile=True, autograph=False) if jit_compile else serve
    specs = {
        name: tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=name)
        for name, tensor in base.input.items()
    }
    archive = keras.export.ExportArchive()
    archive.track(base)
    archive.add_endpoint("serving_default", function, input_signature=[specs])
    archive.write_out(str(path), verbose=False)


def time_models(
    models: dict[Path, tuple[str, ...]],
    rows: dict[str, np.ndarray],
    folder: Path,
    num_rounds: int,
    size: int,
) -> np.ndarray:
    """Seconds of a run (rounds, models)."""
    arguments = ["--time", str(num_rounds), str(NUM_RUNS.get(size, 20))]
    for number, (path, outputs) in enumerate(models.items()):
        request = folder / f"request-{number}"
        c_client.write_request(request, path, rows, outputs=outputs)
        arguments += [str(path), str(request)]
    done = c_client.run(arguments)
    if done.returncode:
        sys.exit(done.stderr)
    return np.array(done.stdout.split(), np.float64).reshape(num_rounds, len(models))


if __name__ == "__main__":
    main()
