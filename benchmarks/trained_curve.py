"""ILPS trained by Adam: its mean prediction on its own rows, by the penalty of eq. 11.

`./dev run python benchmarks/trained_curve.py`. Logits of known labels, scaled by 1.3 and shifted by
0.5; all rows are in each step, and the learning rate decays to 0, so that neither the noise of
batches nor an early end explains what is left. The direct fit gives 1.000 everywhere.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

from keras_calibration.layers import ILPS

FORMS = {"the paper's": ILPS.from_paper, "default": ILPS}
PENALTIES = (1.0, 1e-2, 1e-4, 1e-6, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.001, 0.01, 0.1, 0.5])
    arguments = parser.parse_args()
    print("| positive rate | form | " + " | ".join(f"λ = {value:g}" for value in PENALTIES) + " |")
    print("| ---: | --- |" + " ---: |" * len(PENALTIES))
    for rate in arguments.rates:
        logits, labels = draw(rate, arguments.rows)
        for form, make in FORMS.items():
            ratios = [
                predicted_ratio(make(penalty=penalty), logits, labels, arguments.steps)
                for penalty in PENALTIES
            ]
            row = " | ".join(f"{ratio:.4f}" for ratio in ratios)
            print(f"| {100 * rate:g} % | {form} | {row} |", flush=True)


def draw(rate: float, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are too steep, and labels."""
    generator = np.random.default_rng(0)
    logits = generator.normal(np.log(rate / (1 - rate)), 1.5, num_rows)
    labels = generator.random(num_rows) < 1 / (1 + np.exp(-logits))
    return (1.3 * logits + 0.5).astype("float32"), labels.astype("float32")


def predicted_ratio(curve: ILPS, logits: np.ndarray, labels: np.ndarray, num_steps: int) -> float:
    """Sum of the predictions over that of the labels, after the training."""
    rows, targets = tf.constant(logits), tf.constant(labels)
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, num_steps))
    curve.build()
    optimizer.build(curve.trainable_variables)

    @tf.function
    def train() -> None:
        for _ in tf.range(num_steps):
            with tf.GradientTape() as tape:
                losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, curve(rows))
                loss = tf.reduce_mean(losses) + sum(curve.losses)
            gradients = tape.gradient(loss, curve.trainable_variables)
            optimizer.apply(gradients, curve.trainable_variables)

    train()
    predicted = 1 / (1 + np.exp(-np.asarray(curve(rows), np.float64)))
    return float(predicted.sum() / labels.sum())


if __name__ == "__main__":
    main()
