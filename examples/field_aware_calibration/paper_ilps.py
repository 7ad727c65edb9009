"""Isotonic Line-Plot Scaling as the paper trains it: eq. 10 with the penalty of eq. 11."""

import keras
import numpy as np
from keras import ops

from keras_calibration._ops import piecewise_linear
from keras_calibration.layers import Head


class PaperILPS(Head):
    """The curve through the points (a_k, b_k), whose values b are trained and may decrease.

    As in the paper, K = 100, σ(a_k) = k / (K + 1), and λ Σ_k (b_k − b_{k+1})₊ is added to the loss.
    The paper gives no λ. Beyond its 100 knots the curve is constant (eq. 9), and the layer starts
    as the identity. (`kc.layers.ILPS.from_paper()` evaluates the isotonic projection of the values,
    which cannot decrease.)

    Args:
        step: The values are `a + step · w` with trained w, which multiplies the learning rate of
            Adam by `step` for them.
        penalty: λ.
        num_knots: K.
    """

    def __init__(self, step: float = 1.0, penalty: float = 0.01, num_knots: int = 100) -> None:
        """Keeps the arguments."""
        super().__init__()
        self.step, self.penalty = step, penalty
        places = np.arange(1, num_knots + 1) / (num_knots + 1)
        self.knots = np.log(places / (1 - places)).astype("float32")

    def build(self, logits_shape: object = None, features_shape: object = None) -> None:
        """Creates the weights."""
        self.changes = self.add_weight(shape=self.knots.shape, initializer="zeros", name="changes")

    def call(self, logits: keras.KerasTensor, features: object = None) -> keras.KerasTensor:
        """Returns calibrated logits; adds the penalty to the losses."""
        values = self.knots + self.step * self.changes
        self.add_loss(self.penalty * ops.sum(ops.relu(values[:-1] - values[1:])))
        return piecewise_linear(logits, self.knots, values, "constant")
