"""`seeds.train` beside `fit`, seed after seed: `./dev run python benchmarks/seed_training.py`.

Two models, batches of 1,024, Adam: three embeddings of 1,000 × 16 with an MLP of 64-64, and an MLP
of 128-128 on 32 numbers. For each engine and number of seeds S, two sweeps with few and with more
epochs are timed. Their difference gives the steady state. What remains of the shorter sweep is the
setup, which is paid once: building, tracing, compiling. Fewer seeds train for more epochs, so that
the difference is much larger than the noise of the setup. `fit` trains one seed after the other in
this process, each in a model of its own, as users do. Its time per seed does not depend on their
number, so one seed is timed, its epochs after the first by a callback. It is timed anew beside
every other sweep, so that both see the same load of the machine.

The roofline is the time of the matrix products alone, at the speed of products of the same shapes
on all cores: less is not possible in float32.

`--seeds 1 4 16`, `--engines vectorized` and `--models "dense MLP"` run a part; the median of
`--rounds` repetitions counts, and more than 16 seeds, which are an average already, are timed once.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_calibration.seeds import train
from keras_calibration.seeds.random_seeds import set_seeds

BATCH = 1024
FEW = 1
# How many more epochs the longer sweep has at least, over all seeds.
MORE_IN_ALL = 48
FITTED_EPOCHS = 21
Rows = tuple[Any, np.ndarray]
Build = Callable[[], keras.Model]


def click_rows(num_rows: int) -> Rows:
    generator = np.random.default_rng(0)
    x = {f"id_{i}": generator.integers(0, 1000, num_rows).astype("int32") for i in range(3)}
    return x, (generator.random(num_rows) < 0.2).astype("float32")


def click_model(jit_compile: bool | str = "auto") -> keras.Model:
    inputs = {f"id_{i}": keras.Input((), dtype="int32", name=f"id_{i}") for i in range(3)}
    hidden = keras.layers.Concatenate()(
        [keras.layers.Embedding(1000, 16)(column) for column in inputs.values()]
    )
    for _ in range(2):
        hidden = keras.layers.Dense(64, "relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", jit_compile=jit_compile)
    return model


def dense_rows(num_rows: int) -> Rows:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_rows, 32)).astype("float32")
    return x, (x[:, 0] > generator.normal(size=len(x))).astype("float32")


def dense_model(jit_compile: bool | str = "auto") -> keras.Model:
    layers = [keras.layers.Dense(128, "relu"), keras.layers.Dense(128, "relu")]
    model = keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", jit_compile=jit_compile)
    return model


def click_model_xla() -> keras.Model:
    return click_model(jit_compile=True)


def dense_model_xla() -> keras.Model:
    return dense_model(jit_compile=True)


MODELS = {
    "embeddings + MLP": (click_model, click_model_xla, click_rows, [(48, 64), (64, 64), (64, 1)]),
    "dense MLP": (dense_model, dense_model_xla, dense_rows, [(32, 128), (128, 128), (128, 1)]),
}


class _Clock(keras.callbacks.Callback):
    """The time at the end of each epoch."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.times: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.times.append(time.perf_counter())


def fitted_epoch(build: Build, rows: Rows) -> float:
    """Seconds of an epoch of `fit` after the first, which traces."""
    set_seeds(initialization=0, order=0)
    clock = _Clock()
    build().fit(*rows, batch_size=BATCH, epochs=FITTED_EPOCHS, verbose=0, callbacks=[clock])
    return (clock.times[-1] - clock.times[0]) / (FITTED_EPOCHS - 1)


def sweep(engine: str, build: Build, rows: Rows, num_seeds: int, epochs: int) -> float:
    """Seconds of a whole sweep."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as ledger:
        train(
            build, rows, ledger=ledger, pipeline="p", seeds=range(num_seeds), epochs=epochs,
            batch_size=BATCH, engine=engine, verbose=0,
        )  # fmt: skip
    return time.perf_counter() - start


def epoch_and_setup(engine: str, build: Build, rows: Rows, num_seeds: int) -> tuple[float, float]:
    """Seconds per seed: an epoch in the steady state, and what is paid once."""
    longer_by = max(3, MORE_IN_ALL // num_seeds)
    few, more = (sweep(engine, build, rows, num_seeds, FEW + by) for by in (0, longer_by))
    epoch = (more - few) / longer_by / num_seeds
    return epoch, few / num_seeds - FEW * epoch


def roofline(shapes: list[tuple[int, int]], steps: int) -> float:
    """Seconds of the matrix products of an epoch at the speed of the fastest of them."""
    speeds = []
    for rows, columns in shapes[:-1]:
        a, b = np.ones((BATCH, rows), "float32"), np.ones((rows, columns), "float32")
        times = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(100):
                a @ b
            times.append((time.perf_counter() - start) / 100)
        speeds.append(2 * BATCH * rows * columns / min(times))
    # Forward, and backward for inputs and weights.
    return sum(6 * BATCH * rows * columns for rows, columns in shapes) * steps / max(speeds)


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="of an epoch")
    parser.add_argument("--engines", nargs="+", default=["vectorized", "vectorized, XLA"])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    print(
        f"Keras backend: {keras.backend.backend()}; {options.steps} steps of {BATCH} rows an epoch"
    )
    for title in options.models:
        build, build_xla, make_rows, shapes = MODELS[title]
        rows = make_rows(BATCH * options.steps)
        floor = roofline(shapes, options.steps)
        print(f"\n{title}: seconds per seed; roofline {floor:.3f} an epoch")
        print(f"{'engine':<18}{'S':>4}{'fit':>8}{'an epoch':>12}{'times fit':>11}{'paid once':>11}")
        for engine, num_seeds in itertools.product(options.engines, options.seeds):
            name, _, xla = engine.partition(", ")
            chosen = build_xla if xla else build
            rounds = []
            for _ in range(options.rounds if num_seeds <= 16 else 1):
                fitted = fitted_epoch(build, rows)
                epoch, setup = epoch_and_setup(name, chosen, rows, num_seeds)
                rounds.append((fitted, epoch, fitted / epoch, setup))
            fitted, epoch, ratio, setup = map(statistics.median, zip(*rounds, strict=True))
            print(
                f"{engine:<18}{num_seeds:>4}{fitted:>8.3f}{epoch:>12.3f}{ratio:>10.1f}x"
                f"{setup:>11.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
