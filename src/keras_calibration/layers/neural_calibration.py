"""NeuralCalibration: the head that adds a curve of the logit and a network over the fields."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_calibration.layers.calibrator import Calibrator, calibration_dtype, check_column


@keras.saving.register_keras_serializable(package="keras_calibration")
class NeuralCalibration(keras.layers.Layer):
    """The Neural Calibration head: calibrated logit `η(l) + g(x)`.

    The calibrated probability is `q(l, x) = σ(η(l) + g(x))` (eq. 7): η corrects the curve as a
    whole and g the segments that the base model gets wrong. With the package's own parts both start
    as "no change".

    Args:
        calibrator: η, a layer from logits to logits, `ILPS()` for example.
        field_network: g, a layer or Keras model from a mapping of features to logits (batch, 1),
            `FieldNetwork(...)` for example; None leaves g out.
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If a part is not a Keras layer.

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

    def __init__(
        self,
        calibrator: keras.layers.Layer,
        field_network: keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=calibration_dtype(kwargs.pop("dtype", None)), **kwargs)
        for name, part in (("calibrator", calibrator), ("field_network", field_network)):
            optional = name == "field_network" and part is None
            if not optional and not isinstance(part, keras.layers.Layer):
                raise ValueError(
                    f"Argument `{name}` must be a Keras layer. Received: {name}={part!r}."
                )
        self.calibrator = calibrator
        self.field_network = field_network

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The features that the head reads, or None where its network does not tell."""
        return () if self.field_network is None else _feature_names(self.field_network)

    @property
    def is_adapted(self) -> bool:
        """Whether nothing is left for `adapt` to do."""
        return all(part.is_adapted for part in self._parts_with("is_adapted"))

    def build(self, logits_shape: Any = None, features_shape: Any = None) -> None:
        """Builds both parts."""
        if not self.calibrator.built:
            self.calibrator.build((None, 1))
        if self.field_network is not None and not self.field_network.built:
            self.field_network.build(features_shape)
        self.built = True

    def call(self, logits: Any, features: Mapping[str, Any]) -> Any:
        """Calibrated logits (batch, 1)."""
        check_column(logits, type(self).__name__, "logits")
        calibrated = self.calibrator(ops.reshape(logits, (-1, 1)))
        if self.field_network is None:
            return calibrated
        correction = self.field_network(features)
        check_column(correction, type(self).__name__, "corrections")
        return calibrated + ops.cast(ops.reshape(correction, (-1, 1)), calibrated.dtype)

    def adapt(
        self, logits: Any, features: Mapping[str, Any], labels: Any, sample_weight: Any = None
    ) -> None:
        """Lets both parts take from development data what is fixed before training.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1).
            features: A mapping of feature names to arrays with n rows.
            labels: Labels in [0, 1] (n,) or (n, 1).
            sample_weight: Weights of the rows, or None.

        Raises:
            ValueError: As the parts' own `adapt`.
        """
        if isinstance(self.calibrator, Calibrator):
            self.calibrator.adapt(logits, labels, sample_weight)
        if self.field_network is not None and hasattr(self.field_network, "is_adapted"):
            self.field_network.adapt(features)

    def finalize(self) -> None:
        """Brings the weights into their final form once training has ended."""
        for part in self._parts_with("finalize"):
            part.finalize()

    def compute_output_shape(self, logits_shape: Any, features_shape: Any = None) -> Any:
        """`(batch, 1)`."""
        return (logits_shape[0], 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        network = self.field_network
        return {
            **super().get_config(),
            "calibrator": keras.saving.serialize_keras_object(self.calibrator),
            "field_network": network and keras.saving.serialize_keras_object(network),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "NeuralCalibration":
        """The layer of a `get_config`."""
        parts = {
            name: config[name] and keras.saving.deserialize_keras_object(config[name])
            for name in ("calibrator", "field_network")
        }
        return cls(**{**config, **parts})

    def _parts_with(self, attribute: str) -> list[Any]:
        return [p for p in (self.calibrator, self.field_network) if hasattr(p, attribute)]


def _feature_names(network: Any) -> tuple[str, ...] | None:
    names = getattr(network, "feature_names", None)
    if names is None and isinstance(getattr(network, "input", None), dict):
        names = tuple(network.input)
    return names
