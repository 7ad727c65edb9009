"""BlendedHead: the mean of what several heads say."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_calibration.layers.calibrator import (
    calibration_dtype,
    check_labels_given,
    has_direct_fit,
    mean_of,
)
from keras_calibration.layers.fit_state import unchanged_if_refused
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.layers.neural_calibration import NeuralCalibration
from keras_calibration.solvers.data_checks import check_rows, warn_of_probabilities
from keras_calibration.solvers.logistic_fit import row_log_losses


@keras.saving.register_keras_serializable(package="keras_calibration")
class BlendedHead(keras.layers.Layer):
    """The mean of the calibrated logits of several heads: `(1/m) Σ_k η_k(l, x)`.

    Heads that err in different ways are better together: the offsets of `FieldBias` are shrunk by
    what the data say of their spread, `NeuralCalibration` sees how columns act together. The head
    starts as the identity where its parts do.

    Args:
        heads: Two heads or more, called as `head(logits, features)`.
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If there are fewer than two heads, or one is no Keras layer.

    Example:
        >>> import numpy as np
        >>> from keras_calibration.layers import BiasCorrection, FieldBias, NeuralCalibration
        >>> head = BlendedHead([FieldBias({"site": 3}), NeuralCalibration(BiasCorrection())])
        >>> print(head(np.array([0.5, -1.0]), {"site": np.array([0, 2])}).numpy())
        [[ 0.5]
         [-1. ]]

    Reference:
        Breiman (1996), *Stacked regressions*; Ranjan and Gneiting (2010), *Combining probability
        forecasts*.
    """

    def __init__(self, heads: Sequence[keras.layers.Layer], **kwargs: Any) -> None:
        super().__init__(dtype=calibration_dtype(kwargs.pop("dtype", None)), **kwargs)
        self.heads = list(heads)
        if len(self.heads) < 2 or not all(isinstance(h, keras.layers.Layer) for h in self.heads):
            raise ValueError(
                f"Argument `heads` must be two Keras layers or more. Received: heads={heads!r}."
            )

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The features that the heads read, or None where one does not tell."""
        names: dict[str, None] = {}
        for head in self.heads:
            own = getattr(head, "feature_names", None)
            if own is None:
                return None
            names |= dict.fromkeys(own)
        return tuple(names)

    @property
    def has_direct_fit(self) -> bool:
        """Whether every head has a direct fit."""
        return all(map(has_direct_fit, self.heads))

    @property
    def is_adapted(self) -> bool:
        """Whether nothing is left for `adapt` to do."""
        return all(getattr(head, "is_adapted", True) for head in self.heads)

    def build(self, logits_shape: Any = None, features_shape: Any = None) -> None:
        """Builds the heads."""
        for head in self.heads:
            if not head.built:
                head.build(logits_shape, features_shape)
        self.built = True

    def call(self, logits: Any, features: Mapping[str, Any]) -> Any:
        """Calibrated logits (batch, 1)."""
        return mean_of([head(logits, features) for head in self.heads])

    def adapt(
        self, logits: Any, features: Mapping[str, Any], labels: Any, sample_weight: Any = None
    ) -> None:
        """Lets the heads take from development data what is fixed before training.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1).
            features: A mapping of feature names to arrays with n rows.
            labels: Labels in [0, 1] (n,) or (n, 1).
            sample_weight: Weights of the rows, or None.

        Raises:
            ValueError: As the heads' own `adapt`.
        """
        for head in self.heads:
            if hasattr(head, "adapt"):
                head.adapt(logits, features, labels, sample_weight)

    def fit(
        self,
        logits: Any,
        features: Mapping[str, Any],
        labels: Any,
        sample_weight: Any = None,
        **network_arguments: Any,
    ) -> FitSummary:
        """Fits each head to the rows by its own `fit`; replaces an earlier fit.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1), finite.
            features: A mapping of feature names to arrays with n rows.
            labels: Labels in [0, 1] (n,) or (n, 1), of both classes.
            sample_weight: Weights of the rows, not negative; ones by default.
            **network_arguments: What else `NeuralCalibration.fit` takes (`seed`, `folds`), for
                the heads of that kind.

        Returns:
            The log loss before and after, and the steps of all heads together.

        Raises:
            ValueError: If a head has no `fit`, or as the heads' own. The layer is then as it was.
        """
        without = [type(head).__name__ for head in self.heads if not has_direct_fit(head)]
        if without:
            raise ValueError(
                f"BlendedHead.fit needs heads with a direct fit. Received: {without}, without one. "
                "Train the blend in a CalibratedModel."
            )
        check_labels_given(labels, type(self).__name__)
        warn_of_probabilities(logits, labels)
        rows = check_rows(logits, labels, sample_weight, both_classes=True)
        names = features if self.feature_names is None else self.feature_names
        columns = {name: np.asarray(features[name]) for name in names if name in features}
        self(rows.logits[:1], {name: column[:1] for name, column in columns.items()})  # builds
        fits = []
        with unchanged_if_refused(self):
            for head in self.heads:
                own = network_arguments if isinstance(head, NeuralCalibration) else {}
                fits.append(head.fit(rows.logits, columns, rows.labels, rows.weights, **own))
        losses = row_log_losses(rows.labels, head_logits(self, rows.logits, columns))
        return FitSummary(
            num_rows=fits[0].num_rows,
            log_loss_before=fits[0].log_loss_before,
            log_loss_after=float(np.average(losses, weights=rows.weights)),
            num_iterations=sum(fit.num_iterations for fit in fits),
            converged=all(fit.converged for fit in fits),
        )

    def finalize(self) -> None:
        """Brings the weights into their final form once training has ended."""
        for head in self.heads:
            if hasattr(head, "finalize"):
                head.finalize()

    def compute_output_shape(self, logits_shape: Any, features_shape: Any = None) -> Any:
        """`(batch, 1)`."""
        return (logits_shape[0], 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        heads = [keras.saving.serialize_keras_object(head) for head in self.heads]
        return {**super().get_config(), "heads": heads}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BlendedHead":
        """The layer of a `get_config`."""
        heads = [keras.saving.deserialize_keras_object(head) for head in config["heads"]]
        return cls(**{**config, "heads": heads})
