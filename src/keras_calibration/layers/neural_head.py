"""What the Neural Calibration heads share: a calibrator of the logits plus a field network."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import (
    Calibrator,
    calibration_dtype,
    check_labels_given,
    mean_of,
)
from keras_calibration.layers.cross_fitting import cross_fit, enough_for, fit_under
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head_logits import head_log_losses, head_logits
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.network_training import copy_of
from keras_calibration.layers.neural_fit_summary import NeuralFitSummary
from keras_calibration.solvers.data_checks import Rows, warn_of_probabilities
from keras_calibration.solvers.row_folds import fold_of_rows

_NUM_FOLDS = 3  # of a single member


class NeuralHead(keras.layers.Layer):
    """Base of the heads with calibrated logits `η(l) + g(x)`, of one logit a row or one a class.

    A subclass says in `as_columns` and `check_rows` what logits and labels it takes.

    Args:
        calibrator: η, a layer from logits to logits; None leaves the logits as they are.
        field_network: g, a layer or Keras model from a mapping of features to as many logits; None
            leaves g out.
        num_members: Number of networks of this form whose mean g is.
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If a part is not a Keras layer, or `num_members` is no whole number above 0.
    """

    # A calibrator with a direct fit, for the message that there is none.
    _example_calibrator: ClassVar[str]

    def __init__(
        self,
        calibrator: keras.layers.Layer | None,
        field_network: keras.layers.Layer | None = None,
        num_members: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=calibration_dtype(kwargs.pop("dtype", None)), **kwargs)
        for name, part in (("calibrator", calibrator), ("field_network", field_network)):
            if part is not None:
                check_part(name, part)
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
    def has_direct_fit(self) -> bool:
        """Whether `fit` can fit the calibrator."""
        is_calibrator = isinstance(self.calibrator, Calibrator)
        return self.calibrator is None or (is_calibrator and self.calibrator.has_direct_fit)

    @property
    def is_adapted(self) -> bool:
        """Whether nothing is left for `adapt` to do."""
        return all(part.is_adapted for part in self._parts_with("is_adapted"))

    def build(self, logits_shape: Any = None, features_shape: Any = None) -> None:
        """Builds both parts."""
        if self.calibrator is not None and not self.calibrator.built:
            self.calibrator.build((None, *self.compute_output_shape(logits_shape or ())[-1:]))
        for member in self.members:
            if not member.built:
                member.build(features_shape)
        self.built = True

    def call(self, logits: Any, features: Mapping[str, Any]) -> Any:
        """Calibrated logits (batch, 1) or (batch, K)."""
        calibrated = self.as_columns(logits, "logits")
        if self.calibrator is not None:
            calibrated = self.calibrator(calibrated)
        if self.field_network is None:
            return calibrated
        num_columns = calibrated.shape[1]
        corrections = [
            self.as_columns(member(features), "corrections", num_columns) for member in self.members
        ]
        return calibrated + mean_of([ops.cast(each, calibrated.dtype) for each in corrections])

    def as_columns(self, values: Any, name: str, num_columns: int | None = None) -> Any:
        """Logits as a tensor (batch, columns); any other shape is refused.

        Args:
            values: What was passed, or what a part gave.
            name: What it is, for the message.
            num_columns: Number of columns that it must have; None where any will do.

        Returns:
            A tensor.

        Raises:
            ValueError: If the shape is another.
        """
        raise NotImplementedError(f"{type(self).__name__} does not write `as_columns`.")

    def check_rows(self, logits: Any, labels: Any, sample_weight: Any) -> Rows:
        """The rows of a fit, all of them; refuses what no head can be fitted on."""
        raise NotImplementedError(f"{type(self).__name__} does not write `check_rows`.")

    def adapt(
        self, logits: Any, features: Mapping[str, Any], labels: Any, sample_weight: Any = None
    ) -> None:
        """Lets both parts take from development data what is fixed before training.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1); of classes (n, K).
            features: A mapping of feature names to arrays with n rows.
            labels: Labels as for `fit`.
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
        folds: Any = None,
        max_epochs: int = 100,
        patience: int = 5,
        learning_rate: float = 1e-3,
        batch_size: int | None = None,
        seed: int | None = 0,
        verbose: int = 0,
    ) -> NeuralFitSummary:
        """Fits η exactly, and then the network, for as long as held-out rows gain by it.

        For each fold of the development set, η is fitted on the other folds (convex, exact) and g
        trained on top of it, from 0, until the log loss of the fold has not fallen for `patience`
        epochs. Each member keeps what it had learnt at its best epoch; a single member is trained
        on all rows for the median of the best epochs. Last, η is fitted on all rows: an `ILPS`
        under the g of the folds, where that lowers the cross-fitted log loss. If the network does
        not lower it by a standard error, or ten rows for every fold that are not of the most
        frequent class are not there, g is set to 0.

        Training η further by gradient together with g, as the paper does, gains nothing: on six
        public tables the test log loss changed by -0.0006 to +0.0019 nats, +0.0002 on average. η
        solved again under g lowered it by 0.0005 on average of nine, by 0.0020 at most.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1), finite; of classes (n, K).
            features: A mapping of feature names to arrays with n rows.
            labels: Labels in [0, 1] (n,) or (n, 1); where the logits are of classes, class numbers
                (n,) or (n, 1), or one-hot or soft labels (n, K). Of two classes at least.
            sample_weight: Weights of the rows, not negative; ones by default.
            folds: Number of folds, by default one for each member, 3 for a single one; `"blocks"`,
                five stretches of rows in their own order; or the number of the fold of each row
                (n,): rows of one user or week in one fold, say. More members than one need as many
                folds.
            max_epochs: Largest number of epochs of a fold.
            patience: Epochs without a gain after which a fold ends.
            learning_rate: Adam's learning rate.
            batch_size: Rows of a batch; by default 128 to 2048, about a fiftieth of the rows.
            seed: Seed of the folds and of the order of the rows; None draws one.
            verbose: 1 shows a progress bar over the folds.

        Returns:
            The log losses before, after and cross-fitted, and the epochs.

        Raises:
            ValueError: If a row is not as described, a feature is missing, numbers of rows or of
                outputs differ, or η has no direct fit. The layer is then as it was.
        """
        check_labels_given(labels, type(self).__name__)
        warn_of_probabilities(logits, labels)
        rows = self.check_rows(logits, labels, sample_weight)
        if not self.has_direct_fit:
            raise ValueError(
                f"{type(self).__name__}.fit needs a calibrator with a direct fit. Received: "
                f"calibrator={self.calibrator!r}. Use {self._example_calibrator}, or train the "
                "head in a Keras model."
            )
        names = self.feature_names
        columns = {n: np.asarray(features[n]) for n in features if names is None or n in names}
        _check_columns(columns, names, len(rows.logits), type(self).__name__)
        self(rows.logits[:1], _first_rows(columns, 1))  # builds, and checks the outputs
        if folds is None:
            folds = self.num_members if self.num_members > 1 else _NUM_FOLDS
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
        curve = self._fit_calibrator(rows)
        corrections = None if result is None else result.corrections
        if corrections is not None and isinstance(self.calibrator, ILPS):
            fit_under(self.calibrator, rows, corrections)
        for number, member in enumerate(self.members):
            if result is not None and result.weights:
                member.set_weights(result.weights[number])
            else:
                _set_to_zero(member, columns)
        losses = head_log_losses(rows.labels, head_logits(self, rows.logits, columns))
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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        parts = {"calibrator": self.calibrator, "field_network": self.field_network}
        return {
            **super().get_config(),
            **{k: part and keras.saving.serialize_keras_object(part) for k, part in parts.items()},
            "num_members": self.num_members,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The layer of a `get_config`."""
        parts = {
            name: config[name] and keras.saving.deserialize_keras_object(config[name])
            for name in ("calibrator", "field_network")
        }
        return cls(**{**config, **parts})

    def _fit_calibrator(self, rows: Rows) -> FitSummary:
        if isinstance(self.calibrator, Calibrator):
            return self.calibrator.fit(rows.logits, rows.labels, rows.weights)
        losses = head_log_losses(rows.labels, rows.logits)
        mean = float(np.average(losses, weights=rows.weights))
        return FitSummary(len(losses), mean, mean, num_iterations=0, converged=True)

    def _parts_with(self, attribute: str) -> list[Any]:
        return [part for part in (self.calibrator, *self.members) if hasattr(part, attribute)]


def check_part(name: str, part: Any) -> None:
    """Refuses a part that is not a Keras layer.

    Args:
        name: The argument's name.
        part: What was passed.

    Raises:
        ValueError: If it is not.
    """
    if not isinstance(part, keras.layers.Layer):
        raise ValueError(f"Argument `{name}` must be a Keras layer. Received: {name}={part!r}.")


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


def _check_columns(
    columns: Mapping[str, np.ndarray], names: Any, num_rows: int, reader: str
) -> None:
    missing = [name for name in names or () if name not in columns]
    if missing:
        raise ValueError(
            f"{reader} reads the features {list(names)}. Received: {sorted(columns)}, "
            f"without {missing}. Pass every one of them."
        )
    for name, column in columns.items():
        if len(column) != num_rows:
            raise ValueError(
                "Logits and features must have the same number of rows. Received: "
                f"{num_rows} logits and {len(column)} rows of {name!r}."
            )
