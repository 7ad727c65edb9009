"""Exactness and cost of the calibrated metrics: `./dev run python benchmarks/metrics.py`.

Four tables: the loss and bias of the one-pass summary against minimisation on the raw rows in
float64; the drift of a long stream in small batches beside Keras' own cross-entropy; the cost of an
update and a result under XLA; and the cost of whole training and evaluation steps, beside Keras'
metrics in one process.

`--rows` sets the length of the stream (1e8 takes some minutes), `--accuracy-rows` the numbers of
rows of the first table.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import scipy.optimize
import tensorflow as tf

from keras_calibration.metrics import CalibratedLogLoss, LogLoss

BIN_WIDTH = 1 / 4  # of the logits' bins within ±16

BATCH_SIZE = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, default=2e7, help="rows of the long stream")
    parser.add_argument(
        "--accuracy-rows", type=float, nargs="+", default=[1e5, 1e6], help="of the first table"
    )
    parser.add_argument("--rounds", type=int, default=7, help="of the last two tables")
    arguments = parser.parse_args()
    for num_rows in arguments.accuracy_rows:
        accuracy_table(int(num_rows))
    stream_table(int(arguments.rows))
    update_table(arguments.rounds)
    step_table(arguments.rounds)


def accuracy_table(num_rows: int) -> None:
    print(f"\nIn-sample loss and bias against minimisation on {num_rows:,} rows (float64)")
    print(f"{'logits':<14} {'click rate':>10} {'|loss error|':>14} {'|bias error|':>14}")
    generator = np.random.default_rng(0)
    for name in ("smooth", "37 atoms", "bin edges", "sentinel -100"):
        for click_rate in (1e-4, 1e-3, 0.03, 0.5):
            logits, labels = make_rows(name, click_rate, num_rows, generator)
            metric = CalibratedLogLoss(num_folds=1, from_logits=True)
            for start in range(0, num_rows, 1 << 18):
                part = slice(start, start + (1 << 18))
                metric.update_state(labels[part], logits[part])
            bias, loss = reference(logits, labels)
            loss_error = abs(float(metric.result()) - loss)
            bias_error = abs(metric.bias[0] - bias)
            print(f"{name:<14} {click_rate:>10g} {loss_error:>14.1e} {bias_error:>14.1e}")
    print("Bounds: loss 1e-8, bias 1e-6.")


def make_rows(
    name: str, click_rate: float, num_rows: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    logits = generator.normal(np.log(click_rate / (1 - click_rate)) - 0.3, 1.3, num_rows)
    if name == "37 atoms":
        logits = np.round(logits * 4) / 4
    elif name == "bin edges":
        # Two atoms at the edges of every bin: the largest variance that a bin can have.
        logits = np.floor(logits / BIN_WIDTH) * BIN_WIDTH
        logits += generator.choice([0, BIN_WIDTH * (1 - 1e-9)], num_rows)
    elif name == "sentinel -100":
        logits[generator.random(num_rows) < 0.05] = -100
    labels = generator.random(num_rows) < 1 / (1 + np.exp(-logits - 0.3))
    return logits, labels.astype("float64")


def reference(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    def excess(bias: float) -> float:
        return float(np.sum(0.5 * (1 + np.tanh((logits + bias) / 2))) - labels.sum())

    bias = scipy.optimize.brentq(excess, -30, 30, xtol=1e-13)
    return bias, float(np.mean(np.logaddexp(0, logits + bias) - labels * (logits + bias)))


def stream_table(num_rows: int, batch_size: int = 257) -> None:
    """The same batches over and over, so that the exact sums are known at any length."""
    print(f"\nA stream of {num_rows:,} rows in batches of {batch_size}: relative error")
    generator = np.random.default_rng(1)
    num_distinct = 400
    logits = generator.normal(-3, 1.5, (num_distinct, batch_size))
    labels = (generator.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype("float32")
    num_batches = num_rows // batch_size // num_distinct * num_distinct
    # Rows as the metric gets them, in float32, with sums in float64.
    seen = logits.astype("float32").astype("float64")
    exact = float(np.mean(np.logaddexp(0, seen) - labels * seen))
    _, calibrated = reference(seen.ravel(), labels.ravel().astype("float64"))
    metrics = [
        (LogLoss(from_logits=True), exact),
        (CalibratedLogLoss(num_folds=1, from_logits=True), calibrated),
        (keras.metrics.BinaryCrossentropy(from_logits=True), exact),
    ]
    x, y = tf.constant(logits, "float32"), tf.constant(labels)
    progress = keras.utils.Progbar(len(metrics) * num_batches, unit_name="batch")
    rows = []
    for metric, expected in metrics:
        feed = looped(metric, x, y)
        for _ in range(num_batches // num_distinct):
            feed()
            progress.add(num_distinct)
        rows.append((metric.name, float(metric.result()) / expected - 1))
    for name, error in rows:
        print(f"{name:<22} {error:>+12.1e}")


def looped(metric: Any, x: Any, y: Any) -> Callable[[], None]:
    @tf.function(jit_compile=True)
    def update(labels: Any, predictions: Any) -> None:
        metric.update_state(labels, predictions)

    @tf.function
    def feed() -> None:
        for number in tf.range(tf.shape(x)[0]):
            update(y[number], x[number])

    return feed


def update_table(num_rounds: int) -> None:
    print(f"\nUpdate and result, XLA, batches of {BATCH_SIZE}: microseconds (median of rounds)")
    generator = np.random.default_rng(2)
    x = tf.constant(generator.normal(-3, 1.5, (64, BATCH_SIZE)), "float32")
    y = tf.cast(tf.random.stateless_uniform(x.shape, (0, 0)) < tf.sigmoid(x), "float32")
    metrics = {
        "keras AUC (200)": keras.metrics.AUC(from_logits=True),
        "keras BinaryCrossentropy": keras.metrics.BinaryCrossentropy(from_logits=True),
        "LogLoss": LogLoss(from_logits=True),
        "CalibratedLogLoss": CalibratedLogLoss(from_logits=True),
    }
    feeds = {name: looped(metric, x, y) for name, metric in metrics.items()}
    results = {
        name: tf.function(metric.result, jit_compile=True) for name, metric in metrics.items()
    }
    updates = interleaved(feeds, num_rounds, per_call=64)
    result_times = interleaved(results, num_rounds)
    print(f"{'metric':<26} {'update':>9} {'÷ AUC':>7} {'result':>9} {'÷ AUC':>7}")
    auc = "keras AUC (200)"
    for name in metrics:
        update, result = updates[name], result_times[name]
        print(
            f"{name:<26} {update:>9.0f} {update / updates[auc]:>7.2f} "
            f"{result:>9.0f} {result / result_times[auc]:>7.2f}"
        )


def interleaved(
    calls: Mapping[str, Callable[[], Any]], num_rounds: int, per_call: int = 1
) -> dict[str, float]:
    """Median time of each call in microseconds, the calls taking turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(num_rounds):
        for name, call in calls.items():
            repeats = max(1, 64 // per_call)
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - start) / repeats / per_call * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def step_table(num_rounds: int) -> None:
    print("\nA step of a model (embeddings 5 × 1000 × 16, two layers of 200), median of rounds")
    generator = np.random.default_rng(3)
    sets = {
        "no metric": [],
        "keras AUC (200)": [keras.metrics.AUC()],
        "keras BinaryCrossentropy": [keras.metrics.BinaryCrossentropy()],
        "CalibratedLogLoss": [CalibratedLogLoss()],
    }
    for kind, jit_compile, batch_size, num_steps in (
        ("fit", False, 512, 100),
        ("fit", True, 512, 100),
        ("evaluate", False, 8192, 25),
        ("evaluate", True, 8192, 25),
    ):
        x = generator.integers(0, 1000, (batch_size * num_steps, 5)).astype("int32")
        y = generator.integers(0, 2, (len(x), 1)).astype("float32")
        calls = {}
        for name, metrics in sets.items():
            copies = [type(metric).from_config(metric.get_config()) for metric in metrics]
            run = getattr(make_model(copies, jit_compile), kind)
            calls[name] = functools.partial(run, x, y, batch_size=batch_size, verbose=0)
        times = interleaved(calls, num_rounds, per_call=64)
        base = times["no metric"]
        print(f"{kind}, batches of {batch_size}, {'XLA' if jit_compile else 'no XLA'}")
        for name, time_of_call in times.items():
            step, added = time_of_call * 64 / num_steps, (time_of_call - base) * 64 / num_steps
            print(
                f"  {name:<26} {step:>9.0f} us a step {added:>+8.0f} us "
                f"{100 * (time_of_call / base - 1):>+7.1f} %"
            )


def make_model(metrics: list[Any], jit_compile: bool) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,), dtype="int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(1000, 16)(inputs))
    for _ in range(2):
        hidden = keras.layers.Dense(200, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", metrics=metrics, jit_compile=jit_compile)
    return model


if __name__ == "__main__":
    main()
