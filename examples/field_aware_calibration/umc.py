"""UMC: a monotone calibration map, learnt as the integral of a positive network.

Bai et al., *Unconstrained Monotonic Calibration of Predictions in Deep Ranking Systems*, SIGIR
2025 (arXiv 2504.14243). Only the abstract and the beginning of the paper were available to us; the
formulas and constants below are those that the authors' public code, baiyimeng/UMC, computes.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops


def dense(units: int, activation: str | None = None) -> keras.layers.Dense:
    """A dense layer as in the public code: Xavier's initialization, scaled by √2 for ReLU."""
    initializer = keras.initializers.VarianceScaling(2.0, "fan_avg", "untruncated_normal")
    return keras.layers.Dense(units, activation, kernel_initializer=initializer)


def positive(x: keras.KerasTensor) -> keras.KerasTensor:
    """ELU(x) + 1, which float32 rounds to 0 below −17 unless it is computed as exp(x)."""
    return ops.where(x > 0, x + 1, ops.exp(ops.minimum(x, 0)))


class MonotoneIntegral(keras.layers.Layer):
    """An unconstrained monotonic network: ∫₀ˡ g(t, context) dt, which increases in the logit l.

    g = ELU(network) + 1 is positive. It is computed at equidistant knots and integrated as if it
    were linear between them and constant beyond. The result is thus strictly monotone. (The
    authors' code takes g at 51 points of [0, l], by the rule of Clenshaw and Curtis. Those points
    move with l, and where the rule does not resolve g, the result can decrease.)

    Args:
        hidden_units: Units of the ReLU layers of g.
        last_knot: The knots are in [-last_knot, last_knot].
        num_knots: Number of knots.

    Call arguments:
        logits: Shape (batch, 1).
        context: Shape (batch, dim).
    """

    def __init__(
        self, hidden_units: Sequence[int] = (50, 50), last_knot: float = 10.0, num_knots: int = 41
    ) -> None:
        """Creates the layers."""
        super().__init__()
        self.first = dense(hidden_units[0])
        self.later_layers = [*(dense(units, "relu") for units in hidden_units[1:]), dense(1)]
        self.knots = np.linspace(-last_knot, last_knot, num_knots, dtype="float32")

    def build(self, logits_shape: Sequence[int], context_shape: Sequence[int]) -> None:
        """Creates the weights."""
        self.first.build((None, 1 + context_shape[-1]))
        units = self.first.units
        for layer in self.later_layers:
            layer.build((None, None, units))
            units = layer.units

    def call(self, logits: keras.KerasTensor, context: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the integral of each row, shape (batch, 1)."""
        weights = self.knot_weights(logits) - self.knot_weights(ops.zeros_like(logits))
        return ops.sum(weights * self.slopes(context), axis=1, keepdims=True)

    def slopes(self, context: keras.KerasTensor) -> keras.KerasTensor:
        """Values of g at the knots for each row, shape (batch, num_knots)."""
        kernel = self.first.kernel
        # The first layer of the network on (knot, context): the context's part once per row.
        context_part = ops.matmul(context, kernel[1:]) + self.first.bias
        hidden = ops.relu(self.knots[:, None] * kernel[0] + context_part[:, None, :])
        for layer in self.later_layers:
            hidden = layer(hidden)
        return ops.squeeze(positive(hidden), -1)

    def knot_weights(self, logits: keras.KerasTensor) -> keras.KerasTensor:
        """Weights of the slopes in the integral from the first knot, shape (batch, num_knots)."""
        step = self.knots[1] - self.knots[0]
        # How much of each interval between knots lies below the logit.
        part = ops.clip((logits - self.knots[:-1]) / step, 0, 1)
        to_right = step * part**2 / 2
        to_left = step * part - to_right
        before = ops.minimum(logits - self.knots[0], 0)
        after = ops.maximum(logits - self.knots[-1], 0)
        return ops.concatenate([before + to_left[:, :1], to_left[:, 1:], after], axis=1) + (
            ops.pad(to_right, ((0, 0), (1, 0)))
        )


class UMC(keras.layers.Layer):
    """Unconstrained monotonic calibration: exp(a(context)) · (∫₀ˡ g dt + offset) + b(context).

    Args:
        rescaling_units: Units of the ReLU layers of the network (a, b).

    Call arguments:
        logits: Shape (batch, 1).
        context: Shape (batch, dim).
    """

    def __init__(self, rescaling_units: Sequence[int] = (200, 200)) -> None:
        """Creates the layers."""
        super().__init__()
        self.integral = MonotoneIntegral()
        self.rescaling = keras.Sequential([*(dense(u, "relu") for u in rescaling_units), dense(2)])

    def build(self, logits_shape: Sequence[int], context_shape: Sequence[int]) -> None:
        """Creates the weights."""
        self.integral.build(logits_shape, context_shape)
        self.rescaling.build(context_shape)
        self.offset = self.add_weight(shape=(), initializer="zeros", name="offset")

    def call(self, logits: keras.KerasTensor, context: keras.KerasTensor) -> keras.KerasTensor:
        """Returns calibrated logits, shape (batch, 1)."""
        rescaling = self.rescaling(context)
        integral = self.integral(logits, context) + self.offset
        return ops.exp(rescaling[:, :1]) * integral + rescaling[:, 1:]


class SmoothCalibrationLoss(keras.layers.Layer):
    """Smooth Calibration Loss: weight · Σ over bins of share · (mean label − mean prediction)².

    The bins have equal width in the calibrated probability. Share and means are moving averages
    over the batches, which start at 0; those of a bin without rows stay as they are. The gradient
    is that of the current batch.

    Args:
        weight: Factor of the sum.
        num_bins: Number of bins.
        decay: Decay of the moving averages.

    Call arguments:
        labels: Shape (batch, 1).
        logits: Shape (batch, 1).
    """

    def __init__(self, weight: float = 1.0, num_bins: int = 10, decay: float = 0.95) -> None:
        """Creates the moving averages."""
        super().__init__()
        self.weight, self.num_bins, self.decay = weight, num_bins, decay
        # Rows: share of the rows, mean label, mean prediction.
        self.averages = self.add_weight(
            shape=(3, num_bins), initializer="zeros", trainable=False, name="averages"
        )

    def call(self, labels: keras.KerasTensor, logits: keras.KerasTensor) -> keras.KerasTensor:
        """Updates the moving averages; returns the loss, a scalar."""
        predictions = ops.reshape(ops.sigmoid(logits), (-1,))
        bins = ops.cast(self.num_bins * predictions, "int32")
        in_bin = ops.one_hot(ops.minimum(bins, self.num_bins - 1), self.num_bins)
        share = ops.mean(in_bin, axis=0)
        values = ops.stack([ops.reshape(labels, (-1,)), predictions])
        means = ops.matmul(values, in_bin) / ops.maximum(ops.sum(in_bin, axis=0), 1.0)
        batch = ops.concatenate([share[None], means])
        averages = self.decay * self.averages + (1 - self.decay) * batch
        averages = ops.where(share > 0, averages, self.averages)
        self.averages.assign(ops.stop_gradient(averages))
        share, label, prediction = ops.unstack(averages)
        # A bin that this batch lacks has no gradient; its constant is left out.
        errors = ops.where(ops.any(in_bin > 0, axis=0), share * (label - prediction) ** 2, 0)
        return self.weight * ops.sum(errors)
