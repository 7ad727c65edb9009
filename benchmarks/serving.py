"""What the head adds to the base model in serving: `./dev run python benchmarks/serving.py`.

The quickstart's base model as Keras exports it, and its calibrated model by `export_savedmodel`,
are loaded by the C program of the tests through TensorFlow's C API, as a C++ server loads them. In
every round one runs after the other, so that the machine's load falls on both alike. The table has,
for each batch size, the medians over the rounds of the two times, of their difference and of their
ratio. `--xla` compiles both by XLA, where batches are taken as they come. `--cores 1` keeps to one
core.
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
NUM_RUNS = {1: 100, 32: 50, 1024: 5}
OUTPUTS = ("probability", "uncalibrated_probability", "logit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--rows", type=int, default=60_000, help="of the click log to train on")
    parser.add_argument("--cores", type=int, help="processor cores to keep to; default: all")
    parser.add_argument("--xla", action="store_true", help="compile both models")
    arguments = parser.parse_args()
    if c_client.find_compiler() is None:
        sys.exit(c_client.NO_COMPILER)
    table = kc.datasets.generate_click_log(arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = export_models(table, folder, arguments.xla)
        if arguments.cores:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
        features, _ = table.part("test")
        print(f"\n{'rows':>5} {'base µs':>9} {'calibrated µs':>14} {'head adds µs':>13} {'%':>6}")
        for size in arguments.batch_sizes:
            rows = {name: column[:size] for name, column in features.items()}
            base, calibrated = 1e6 * time_models(models, rows, folder, arguments.rounds, size).T
            added, share = np.median(calibrated - base), np.median(calibrated / base) - 1
            print(
                f"{size:>5} {np.median(base):>9.1f} {np.median(calibrated):>14.1f} "
                f"{added:>13.1f} {100 * share:>6.1f}"
            )


def export_models(table: Any, folder: Path, jit_compile: bool) -> dict[Path, tuple[str, ...]]:
    """The base model alone, then the calibrated model: folder of each → its outputs."""
    base = quickstart.train_base_model(table, "Base model")
    model = quickstart.calibrate(table, base, folder / "runs", 0, "Calibration")
    rows, _ = table.part("test")
    export_base(base, folder / "base", jit_compile)
    kc.export_savedmodel(model, folder / "calibrated", rows, jit_compile=jit_compile)
    return {folder / "base": OUTPUTS[:1], folder / "calibrated": OUTPUTS}


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
