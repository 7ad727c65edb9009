"""Time and kernels of a training step of the head: `./dev run python benchmarks/head.py`.

The head as a whole (ILPS, field network, sigmoid, log loss, Adam) under XLA, on base logits that
are at hand, beside the same without ILPS, and beside the network as Keras' own layers make it, an
`Embedding` for each field. For each the time of a step, its ratio to Keras' own, and what the
compiled program consists of: the operations that read and write memory (fusions, matrix products,
gathers, scatters, loops) and the bytes that these read and write. The last lines compare the
gradient of the embeddings with that of Keras' `Embedding` layers of the same weights, and both with
sums in float64.

TensorFlow runs on one thread. The times are CPU times, which are steady even on a busy machine. All
variants take turns; the figures are medians.
"""

import argparse
import os
import re
import statistics
import time
from collections import Counter
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration

FIELDS = {"site": 20_000, "advertiser": 2_000, "country": 200, "device": 12, "hour": 24}
EMBEDDING_DIM, HIDDEN_UNITS = 16, (64, 32)
KERAS = "Keras' own layers"
# Operations of a compiled program that touch memory; the others name, reshape or pass on.
OPERATIONS = (
    "fusion",
    "dot",
    "custom-call",
    "gather",
    "scatter",
    "while",
    "sort",
    "reduce",
    "call",
)
ITEM = {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "pred": 1, "bf16": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 8192])
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for num_rows in arguments.rows:
        batch = make_batch(num_rows)
        steps = {name: make_step(head) for name, head in make_heads(batch).items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(arguments.rounds):
            for name, step in steps.items():
                times[name].append(seconds(step, batch))
        print(f"\n{num_rows:,} rows a step, {len(FIELDS)} fields, {sum(FIELDS.values()):,} values")
        print(f"{'':<28}{'µs a step':>10}{'ratio':>7}{'operations':>12}{'MB':>7}")
        keras_time = statistics.median(times[KERAS])
        for name, step in steps.items():
            median = statistics.median(times[name])
            counts, num_bytes = contents(step, batch)
            print(
                f"{name:<28}{1e6 * median:>10.0f}{median / keras_time:>7.2f}"
                f"{sum(counts.values()):>12}{num_bytes / 1e6:>7.1f}  "
                + ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
            )
    compare_gradients(make_batch(max(arguments.rows)))


def make_batch(num_rows: int) -> tuple[Any, dict[str, Any], Any]:
    """Logits, features and labels; ids are drawn by Zipf's law, so that many occur twice."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-2, 1.3, (num_rows, 1)).astype("float32")
    features = {}
    for name, num_values in FIELDS.items():
        weights = 1 / np.arange(1, num_values + 1)
        ids = generator.choice(num_values, num_rows, p=weights / weights.sum())
        features[name] = tf.constant(ids.astype("int32"))
    labels = generator.random((num_rows, 1)) < 1 / (1 + np.exp(-logits))
    return tf.constant(logits), features, tf.constant(labels.astype("float32"))


def make_heads(batch: tuple[Any, dict[str, Any], Any]) -> dict[str, Any]:
    """Name → head of logits and features, adapted to the batch."""
    logits, features, labels = batch

    def network() -> FieldNetwork:
        return FieldNetwork(
            FIELDS, (), EMBEDDING_DIM, HIDDEN_UNITS, regularization=0.0, dropout=0.0, seed=0
        )

    heads = {
        "ILPS + FieldNetwork": NeuralCalibration(ILPS(), network()),
        "FieldNetwork alone": NeuralCalibration(None, network()),
        KERAS: NeuralCalibration(None, keras_network()),
    }
    for head in heads.values():
        head.adapt(logits, labels, features)
        head(logits, features)
    return heads


def keras_network() -> keras.Model:
    """The same network, of Keras' layers."""
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in FIELDS}
    embedded = [
        keras.layers.Embedding(num_values + 1, EMBEDDING_DIM, name=f"of_{name}")(inputs[name])
        for name, num_values in FIELDS.items()
    ]
    hidden = keras.layers.Concatenate()(embedded)
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, "relu")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(hidden))


def make_step(head: Any) -> Any:
    """A compiled training step of a head."""
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(head.trainable_variables)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function(jit_compile=True, autograph=False)
    def step(logits: Any, features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, head(logits, features)) + sum(head.losses, 0.0)
        variables = head.trainable_variables
        optimizer.apply(tape.gradient(value, [v.value for v in variables]), variables)
        return value

    return step


def seconds(step: Any, batch: Any, num_steps: int = 5) -> float:
    """CPU time of a step."""
    step(*batch)
    start = time.process_time()
    for _ in range(num_steps):
        step(*batch)
    return (time.process_time() - start) / num_steps


def contents(step: Any, batch: Any) -> tuple[Counter[str], int]:
    """Kind → number of the operations that touch memory, and the bytes of their results."""
    program = step.experimental_get_compiler_ir(*batch)(stage="optimized_hlo")
    entry = program[program.index("\nENTRY") :]
    counts: Counter[str] = Counter()
    num_bytes = 0
    for line in entry.splitlines():
        match = re.match(r"\s+(?:ROOT )?%?[\w.-]+ = (.+?) ([\w-]+)\(", line)
        if match and match[2] in OPERATIONS:
            counts[match[2]] += 1
            for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", match[1]):
                sizes = [int(size) for size in shape.split(",") if size]
                num_bytes += ITEM.get(dtype, 4) * int(np.prod(sizes))
    return counts, num_bytes


def compare_gradients(batch: tuple[Any, dict[str, Any], Any]) -> None:
    """The gradient of Σ w·e over the rows by the embeddings e, against sums in float64."""
    logits, features, _ = batch
    generator = np.random.default_rng(1)
    upstream = generator.normal(size=(len(logits), len(FIELDS) * EMBEDDING_DIM)).astype("float32")
    heads = make_heads(batch)
    ours, model = heads["FieldNetwork alone"].field_network, heads[KERAS].field_network
    tables = [model.get_layer(f"of_{name}").embeddings for name in FIELDS]
    to_embeddings = keras.Model(model.input, model.layers[len(FIELDS) * 2].output)
    offsets = np.cumsum([0, *(number + 1 for number in FIELDS.values())])
    expected = np.zeros((offsets[-1], EMBEDDING_DIM))
    for number, name in enumerate(FIELDS):
        columns = slice(number * EMBEDDING_DIM, (number + 1) * EMBEDDING_DIM)
        rows = features[name].numpy() + offsets[number]
        np.add.at(expected, rows, upstream[:, columns].astype("float64"))

    @tf.function(jit_compile=True)
    def gradients() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            our_sum = tf.reduce_sum(upstream * ours.embed(features))
            keras_time = tf.reduce_sum(upstream * to_embeddings(features))
        theirs = [tf.convert_to_tensor(tape.gradient(keras_time, t.value)) for t in tables]
        return tape.gradient(our_sum, ours.embeddings.value), tf.concat(theirs, axis=0)

    print("\nGradient of the embeddings, largest error over largest entry, against float64")
    for name, gradient in zip(("FieldNetwork", KERAS), gradients(), strict=True):
        error = np.abs(gradient.numpy() - expected).max() / np.abs(expected).max()
        print(f"{name:<28}{error:>10.1e}")


if __name__ == "__main__":
    main()
