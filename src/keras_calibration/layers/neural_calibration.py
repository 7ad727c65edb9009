"""NeuralCalibration: a calibrator of the logit plus a network over the fields."""

from __future__ import annotations

import keras

from keras_calibration._typing import Features, Tensor
from keras_calibration.layers.calibrator import as_column, check_column
from keras_calibration.layers.neural_head import NeuralHead


@keras.saving.register_keras_serializable(package="keras_calibration")
class NeuralCalibration(NeuralHead):
    """The Neural Calibration head: calibrated logit `η(l) + g(x)`.

    The calibrated probability is `q(l, x) = σ(η(l) + g(x))` (eq. 7). η corrects the curve as a
    whole, and g the segments that the base model gets wrong. With the parts of this package, the
    head starts as the identity. For more than two classes, use `ClassNeuralCalibration`.

    Args:
        calibrator: η, a `Calibrator`, `ILPS()` for example; None leaves the logits as they are.
        field_network: g, a layer or Keras model from a mapping of features to logits (batch, 1),
            `FieldNetwork(...)` for example; None leaves g out.
        num_members: Number of networks; g is their mean. In `fit` each is trained on another part
            of the development set; with 1, one of three so trained is kept. Three predict better at
            the same training cost.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If an argument has a wrong type, or `num_members` is not a positive integer.

    Example:
        >>> from keras_calibration.layers import ILPS, FieldNetwork
        >>> import numpy as np
        >>> head = NeuralCalibration(ILPS(), FieldNetwork({"site": 3}))
        >>> print(head(np.array([0.5, -1.0]), {"site": np.array([0, 2])}).numpy())
        [[ 0.5]
         [-1. ]]

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 7.
    """

    def as_columns(self, values: Tensor, name: str, num_columns: int | None = 1) -> Tensor:
        """Values as a column (batch, 1); raises for other shapes than (batch,) and (batch, 1)."""
        check_column(values.shape, type(self).__name__, name)
        return as_column(values)

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the logit, if there is no network; else raises."""
        calibrator = self.lone_calibrator()
        if calibrator is None:
            return super().logit_standard_deviation(logits, features)
        return calibrator.logit_standard_deviation(self.as_columns(logits, "logits"))

    def check_posterior(self) -> None:
        """Raises if the posterior of η is not that of its weights."""
        calibrator = self.lone_calibrator()
        if calibrator is not None:
            calibrator.check_posterior()
