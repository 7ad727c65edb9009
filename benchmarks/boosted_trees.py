"""Prediction by the tables of trees: `./dev run python benchmarks/boosted_trees.py`.

A `BoostedTrees` head and a network head are fitted to the click log and called on the same rows: as
TensorFlow functions, as they are and compiled by XLA, in the form in which they are served. Beside
them, LightGBM's own prediction of the same trees, from columns that are at hand, with one thread.
The largest difference of the two sums of trees is printed. Medians of rounds in turns.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_calibration as kc
from keras_calibration._ops.boosted_trees import tree_sums
from keras_calibration._solvers import boosting
from keras_calibration.layers import boosted_trees as layer

SECONDS_A_ROUND = 0.02


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    logits, labels, features, fields = click_rows(options.rows)
    trees = kc.layers.BoostedTrees(fields, ["hour"])
    model, columns = fit_and_keep(trees, logits, labels, features)
    trimmed = trees.trimmed()
    curve = kc.layers.ILPS(smoothness="auto", monotonic="strict")
    network = kc.layers.NeuralCalibration(curve, kc.layers.FieldNetwork(fields, ["hour"]), 3)
    network.fit(logits, labels, features)
    tables = boosting.tables_of(model, trees.tables[-1].shape[0], columns.shape[1])
    sums = np.asarray(tree_sums(columns, *tables))[:, 0]
    difference = np.abs(sums - model.predict(columns, raw_score=True)).max()
    print(f"{model.num_trees()} trees of 256; largest difference {difference:.1e}\n")
    print(f"{'rows':>5}  {'what':<40}{'µs':>9}")
    for number in (1, 1024):
        part = {name: tf.constant(column[:number]) for name, column in features.items()}
        given = tf.constant(logits[:number, None], "float32")
        programs: dict[str, Callable[[], Any]] = {
            "LightGBM's own predict, trees alone": lambda n=number: model.predict(
                columns[:n], raw_score=True, num_threads=1
            )
        }
        heads = {
            "256 rounds": trees,
            f"{trimmed.num_rounds} rounds, as from calibrate": trimmed,
            "their head alone": trees.head,
        }
        for name, head in heads.items():
            programs |= functions(name, head, given, part)
        programs |= functions("network of three members", network, given, part)
        for name, microseconds in measure(programs, options.rounds).items():
            print(f"{number:>5}  {name:<40}{microseconds:>9.0f}")


def click_rows(num_rows: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], dict]:
    """Rows of a log with an interaction that offsets cannot express."""
    generator = np.random.default_rng(0)
    fields = {"site": 500, "device": 4, "country": 60}
    features = {
        name: generator.integers(0, size, num_rows).astype("int32") for name, size in fields.items()
    }
    features["hour"] = generator.uniform(0, 24, num_rows).astype("float32")
    logits = generator.normal(-1, 1, num_rows)
    effect = np.sin(features["hour"] / 4 + features["device"]) + 0.01 * (features["site"] % 50)
    labels = generator.random(num_rows) < 1 / (1 + np.exp(-logits - effect))
    return logits, labels.astype(float), features, fields


def fit_and_keep(
    head: kc.layers.BoostedTrees,
    logits: np.ndarray,
    labels: np.ndarray,
    features: dict[str, np.ndarray],
) -> tuple[Any, np.ndarray]:
    """Fits the head; returns LightGBM's model, and the columns that the trees see."""
    kept = {}

    def boost(rows: Any, columns: np.ndarray, *args: Any, **kwargs: Any) -> boosting.Boosting:
        kept["columns"] = columns
        kept["found"] = boosting.boost(rows, columns, *args, **kwargs)
        return kept["found"]

    original, layer.boost = layer.boost, boost
    try:
        print(head.fit(logits, labels, features))
    finally:
        layer.boost = original
    return kept["found"].model, kept["columns"]


def functions(
    name: str, head: keras.layers.Layer, logits: tf.Tensor, features: dict[str, tf.Tensor]
) -> dict[str, Callable[[], Any]]:
    """The served head as a TensorFlow function, as it is and compiled."""
    found = {}
    for jit_compile in (False, True):
        served = head.served()
        # The curve of the served head is found by an operation that XLA does not have.
        called = head if jit_compile else served
        function = tf.function(
            lambda called=called: called(logits, features),
            jit_compile=jit_compile,
            autograph=False,
        )
        found[f"{name}, {'XLA' if jit_compile else 'served'}"] = function
    return found


def measure(programs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median µs of each program, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for run in programs.values():
        run()
    for _ in range(rounds):
        for name, run in programs.items():
            start, number = time.perf_counter(), 0
            while (passed := time.perf_counter() - start) < SECONDS_A_ROUND:
                run()
                number += 1
            times[name].append(1e6 * passed / number)
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    main()
