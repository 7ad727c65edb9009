"""ClassNeuralCalibration: a calibrator of class logits plus a network over the fields."""

from __future__ import annotations

from collections.abc import Mapping

import keras
from keras import ops
from numpy.typing import ArrayLike

from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.neural_head import NeuralHead
from keras_calibration.solvers.class_rows import check_class_rows
from keras_calibration.solvers.data_checks import Rows


@keras.saving.register_keras_serializable(package="keras_calibration")
class ClassNeuralCalibration(NeuralHead):
    """The Neural Calibration head for K classes: calibrated class logits `η(l) + g(x)`.

    The calibrated probabilities are `q(l, x) = softmax(η(l) + g(x))`. η corrects all rows alike, by
    one temperature, or by a scale and a bias per class. g corrects each class in the segments that
    the base model gets wrong. The head starts as the identity, and `fit` leaves g at 0 unless it
    lowers the log loss of held-out rows.

    Args:
        calibrator: η, a `Calibrator` of class logits, `VectorScaling(K)` or
            `ClassTemperatureScaling()` for example; None leaves the logits as they are.
        field_network: g, a layer or Keras model from a mapping of features to logits (batch, K),
            `FieldNetwork(..., num_outputs=K)` for example; None leaves g out.
        num_members: Number of networks; g is their mean. In `fit` each is trained on another part
            of the development set; with 1, one of three so trained is kept. Three predict better at
            the same training cost.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated class logits (batch, K), K ≥ 2.
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If an argument has a wrong type, or `num_members` is not a positive integer;
            when called, if the logits have another shape or the network another number of outputs.

    Example:
        >>> from keras_calibration.layers import FieldNetwork, FitSettings, VectorScaling
        >>> import numpy as np
        >>> logits = np.random.default_rng(0).normal(size=(600, 3))
        >>> site = np.arange(600) % 3
        >>> network = FieldNetwork({"site": 3}, num_outputs=3, seed=0)
        >>> head = ClassNeuralCalibration(VectorScaling(3), network)
        >>> settings = FitSettings(learning_rate=0.01, max_epochs=5)
        >>> summary = head.fit(logits, site, {"site": site}, settings=settings)
        >>> summary.network_kept
        True
        >>> head(logits[:4], {"site": site[:4]}).numpy().argmax(axis=1)
        array([0, 1, 2, 0])

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 7, which leaves several classes
    to future work; Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017, for η.
    """

    def as_columns(self, values: Tensor, name: str, num_columns: int | None = None) -> Tensor:
        """Class logits (batch, K); raises for any other shape."""
        self._check_shape(values.shape, name, num_columns)
        return ops.cast(values, self.compute_dtype)

    def _check_shape(self, shape: Shape, name: str, num_columns: int | None = None) -> None:
        shape = tuple(shape)
        if len(shape) != 2 or (shape[1] or 0) < 2 or shape[1] != (num_columns or shape[1]):
            classes = "K of at least 2" if num_columns is None else f"K = {num_columns}"
            raise ValueError(
                f"The {name} of {type(self).__name__} must have shape (batch, K) with {classes}. "
                f"Received: shape {shape}. Give the network one output per class, with "
                "`num_outputs` of FieldNetwork. For one logit per row, use NeuralCalibration."
            )

    def check_rows(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None,
        both_classes: bool = True,
    ) -> Rows:
        """Checks the rows of a fit; returns the labels as one column per class."""
        rows = check_class_rows(logits, labels, sample_weight, True, both_classes)
        return Rows(rows.logits, rows.labels, rows.weights)

    def compute_output_shape(
        self, logits_shape: Shape, features_shape: Mapping[str, Shape] | None = None
    ) -> Shape:
        """`(batch, K)`; raises for other logits, which Keras asks before it calls the head."""
        self._check_shape(logits_shape, "logits")
        for calibrator in self.calibrators():
            calibrator.compute_output_shape(logits_shape)
        return tuple(logits_shape)
