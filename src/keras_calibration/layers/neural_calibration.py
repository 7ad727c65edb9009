"""NeuralCalibration: the head that adds a curve of the logit and a network over the fields."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import (
    Calibrator,
    as_column,
    calibration_dtype,
    check_column,
    check_labels_given,
    mean_of,
)
from keras_calibration.layers.cross_fitting import cross_fit, enough_for
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.layers.network_training import copy_of
from keras_calibration.layers.neural_fit_summary import NeuralFitSummary
from keras_calibration.ops.data_checks import check_rows
from keras_calibration.ops.logistic_fit import row_log_losses
from keras_calibration.ops.row_folds import fold_of_rows


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
        num_members: Number of networks of this form whose mean g is. Each learns from another part
            of the development set in `fit`, so that 3 are better than one and no slower to train.
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If a part is not a Keras layer, or `num_members` is no whole number above 0.

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
        num_members: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=calibration_dtype(kwargs.pop("dtype", None)), **kwargs)
        for name, part in (("calibrator", calibrator), ("field_network", field_network)):
            optional = name == "field_network" and part is None
            if not optional and not isinstance(part, keras.layers.Layer):
                raise ValueError(
                    f"Argument `{name}` must be a Keras layer. Received: {name}={part!r}."
                )
        if not isinstance(num_members, int) or num_members < 1:
            raise ValueError(
                "Argument `num_members` must be a whole number of at least 1. "
                f"Received: num_members={num_members!r}."
            )
        self.calibrator = calibrator
        self.field_network = field_network
        self.num_members = num_members
        self._other_members = [
            copy_of(field_network) for _ in range(num_members - 1) if field_network is not None
        ]

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The features that the head reads, or None where its network does not tell."""
        return () if self.field_network is None else _feature_names(self.field_network)

    @property
    def members(self) -> list[Any]:
        """The networks whose mean g is; none where g is left out."""
        return [] if self.field_network is None else [self.field_network, *self._other_members]

    @property
    def is_adapted(self) -> bool:
        """Whether nothing is left for `adapt` to do."""
        return all(part.is_adapted for part in self._parts_with("is_adapted"))

    def build(self, logits_shape: Any = None, features_shape: Any = None) -> None:
        """Builds both parts."""
        if not self.calibrator.built:
            self.calibrator.build((None, 1))
        for member in self.members:
            if not member.built:
                member.build(features_shape)
        self.built = True

    def call(self, logits: Any, features: Mapping[str, Any]) -> Any:
        """Calibrated logits (batch, 1)."""
        check_column(logits, type(self).__name__, "logits")
        calibrated = self.calibrator(as_column(logits))
        if self.field_network is None:
            return calibrated
        corrections = []
        for member in self.members:
            correction = member(features)
            check_column(correction, type(self).__name__, "corrections")
            corrections.append(ops.cast(as_column(correction), calibrated.dtype))
        return calibrated + mean_of(corrections)

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
        for member in self.members:
            if hasattr(member, "is_adapted"):
                member.adapt(features)

    def fit(
        self,
        logits: Any,
        features: Mapping[str, Any],
        labels: Any,
        sample_weight: Any = None,
        folds: Any = 3,
        max_epochs: int = 100,
        patience: int = 5,
        learning_rate: float = 1e-3,
        batch_size: int | None = None,
        seed: int | None = 0,
        verbose: int = 0,
    ) -> NeuralFitSummary:
        """Fits the curve exactly, and then the network, for as long as held-out rows gain by it.

        For each fold of the development set, η is fitted on the other folds (convex, exact) and g
        trained on top of it, from 0, until the log loss of the fold has not fallen for `patience`
        epochs. Each member keeps what it had learnt at its best epoch; a single member is trained
        on all rows for the median of the best epochs. Last, η is fitted on all rows. If the network
        does not lower the cross-fitted log loss by a standard error, or there are not ten rows of
        each class for every fold, g is set to 0.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1), finite.
            features: A mapping of feature names to arrays with n rows.
            labels: Labels in [0, 1] (n,) or (n, 1), of both classes.
            sample_weight: Weights of the rows, not negative; ones by default.
            folds: Number of folds; `"blocks"`, five stretches of rows in their own order; or the
                number of the fold of each row (n,): rows of one user or week in one fold, say. With
                more members than one there is a fold for each, whatever number is given.
            max_epochs: Largest number of epochs of a fold.
            patience: Epochs without a gain after which a fold ends.
            learning_rate: Adam's learning rate.
            batch_size: Rows of a batch; by default 128 to 2048, about a fiftieth of the rows.
            seed: Seed of the folds and of the order of the rows; None draws one.
            verbose: 1 shows a progress bar over the folds.

        Returns:
            The log losses before, after and cross-fitted, and the epochs.

        Raises:
            ValueError: If a row is not as described, a feature is missing, numbers of rows differ,
                or η has no direct fit. The layer is then as it was.
        """
        check_labels_given(labels, type(self).__name__)
        rows = check_rows(logits, labels, sample_weight, both_classes=True)
        if not isinstance(self.calibrator, Calibrator):
            raise ValueError(
                "NeuralCalibration.fit needs a calibrator with a direct fit. Received: calibrator="
                f"{self.calibrator!r}. Use ILPS(), or train the head in a CalibratedModel."
            )
        names = self.feature_names
        columns = {n: np.asarray(features[n]) for n in features if names is None or n in names}
        _check_columns(columns, names, len(rows.logits))
        if self.num_members > 1 and isinstance(folds, int):
            folds = self.num_members
        result = None
        fold = fold_of_rows(folds, rows, seed) if self.members else None
        if fold is not None and self.num_members not in (1, num_folds := int(fold.max()) + 1):
            raise ValueError(
                "Each member learns from the rows outside of one fold. Received: "
                f"{self.num_members} members and {num_folds} folds. Make them equal."
            )
        if fold is not None and enough_for(int(fold.max()) + 1, rows):
            result = cross_fit(
                self.calibrator,
                self.field_network,
                rows,
                columns,
                folds=fold,
                refit=self.num_members == 1,
                max_epochs=max_epochs,
                patience=patience,
                learning_rate=learning_rate,
                batch_size=batch_size,
                seed=seed,
                verbose=verbose,
            )
        curve = self.calibrator.fit(rows.logits, rows.labels, rows.weights)
        for number, member in enumerate(self.members):
            member(_first_rows(columns, 1))  # builds
            if result is not None and result.weights:
                member.set_weights(result.weights[number])
            else:
                _set_to_zero(member, columns)
        losses = row_log_losses(rows.labels, head_logits(self, rows.logits, columns))
        return NeuralFitSummary(
            num_rows=curve.num_rows,
            log_loss_before=curve.log_loss_before,
            log_loss_after=float(np.average(losses, weights=rows.weights)),
            num_iterations=curve.num_iterations if result is None else sum(result.epochs),
            converged=curve.converged,
            **({} if result is None else result.figures()),
        )

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
            "num_members": self.num_members,
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
        return [part for part in (self.calibrator, *self.members) if hasattr(part, attribute)]


def _feature_names(network: Any) -> tuple[str, ...] | None:
    names = getattr(network, "feature_names", None)
    if names is None and isinstance(getattr(network, "input", None), dict):
        names = tuple(network.input)
    return names


def _first_rows(columns: Mapping[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    return {name: column[:number] for name, column in columns.items()}


def _set_to_zero(network: Any, columns: Mapping[str, np.ndarray]) -> None:
    """Makes g = 0: as a fresh network where that is 0, else with weights of 0."""
    fresh = copy_of(network)
    if np.any(ops.convert_to_numpy(fresh(_first_rows(columns, 100)))):
        for weight in network.trainable_weights:
            weight.assign(ops.zeros(weight.shape, weight.dtype))
    else:
        if hasattr(fresh, "adapt"):
            fresh.adapt(columns)
        network.set_weights(fresh.get_weights())


def _check_columns(columns: Mapping[str, np.ndarray], names: Any, num_rows: int) -> None:
    missing = [name for name in names or () if name not in columns]
    if missing:
        raise ValueError(
            f"NeuralCalibration reads the features {list(names)}. Received: {sorted(columns)}, "
            f"without {missing}. Pass every one of them."
        )
    for name, column in columns.items():
        if len(column) != num_rows:
            raise ValueError(
                "Logits and features must have the same number of rows. Received: "
                f"{num_rows} logits and {len(column)} rows of {name!r}."
            )
