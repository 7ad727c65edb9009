"""NeuralHead: the base class of the Neural Calibration heads, binary and multiclass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.calibrator import Calibrator, mean_of
from keras_calibration.layers.cross_fitting import CrossFit, cross_fit, enough_for, fit_under
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.network_trainer import copy_of
from keras_calibration.layers.neural_fit_summary import NeuralFitSummary
from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.row_folds import fold_of_rows

_NUM_FOLDS = 3  # with a single member


class NeuralHead(Head):
    """Base of the heads with calibrated logits `η(l) + g(x)`, one logit per row or one per class.

    A subclass defines in `as_columns` and `check_rows` which logits and labels it accepts.

    The direct fit works as follows:

    1. For each fold of the development set, η is fitted on the other folds (convex, exact). g is
       trained on top of it, starting from 0, until the log loss of the fold has not improved for
       some epochs.
    2. Each member keeps the weights of the best epoch of its fold; a single member those of the
       first fold. So the cross-fitted log loss of one network is that of a member of the head, and
       the mean of the members predicts better still. No network is trained on all rows, because
       no held-out rows would tell when to stop: a few epochs more ruin it.
    3. η is fitted on all rows; an `ILPS` is fitted under the cross-fitted g if that lowers the
       cross-fitted log loss.

    g is set to 0 if it does not lower the cross-fitted log loss by at least one standard error, or
    if there are not ten rows per fold outside the most frequent class.

    Training η further by gradient together with g, as in the paper, gains nothing: on six public
    tables the test log loss changed by -0.0006 to +0.0019 nats, +0.0002 on average. Fitting η again
    under g lowered it by 0.0005 on average over nine comparisons, by 0.0020 at most.

    Args:
        calibrator: η, a `Calibrator`; None leaves the logits as they are.
        field_network: g, a layer or Keras model from a mapping of features to as many logits; None
            leaves g out. A custom layer may declare its features in `feature_names`.
        num_members: Number of networks; g is their mean.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If an argument has a wrong type, or `num_members` is not a positive integer.
    """

    def __init__(
        self,
        calibrator: Calibrator | None = None,
        field_network: keras.layers.Layer | None = None,
        num_members: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not (calibrator is None or isinstance(calibrator, Calibrator)):
            raise ValueError(
                "Argument `calibrator` must be a `Calibrator`, for example ILPS(), or None. "
                f"Received: calibrator={calibrator!r}. To use a layer of your own, subclass "
                "Calibrator and define `calibrate`."
            )
        if field_network is not None and not isinstance(field_network, keras.layers.Layer):
            raise ValueError(
                "Argument `field_network` must be a Keras layer or model, or None. Received: "
                f"field_network={field_network!r}."
            )
        if not isinstance(num_members, int) or num_members < 1:
            raise ValueError(
                "Argument `num_members` must be an integer of at least 1. Received: "
                f"num_members={num_members!r}."
            )
        self.calibrator = calibrator
        self.field_network = field_network
        self.num_members = num_members
        self._other_members = [
            copy_of(field_network) for _ in range(num_members - 1) if field_network is not None
        ]

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The features that the head reads, or None if its network does not declare them."""
        network = self.field_network
        if network is None:
            return ()
        # The network may be any Keras layer or model; a subclassed model has no `input`.
        names = getattr(network, "feature_names", None)
        inputs = getattr(network, "input", None) if isinstance(network, keras.Model) else None
        return tuple(inputs) if names is None and isinstance(inputs, Mapping) else names

    @property
    def members(self) -> list[keras.layers.Layer]:
        """The networks whose mean is g; empty if g is left out."""
        return [] if self.field_network is None else [self.field_network, *self._other_members]

    def calibrators(self) -> list[Calibrator]:
        """η, if there is one."""
        return [] if self.calibrator is None else [self.calibrator]

    def field_readers(self) -> list[FieldNetwork]:
        """g, if it is a `FieldNetwork`."""
        return [g for g in [self.field_network] if isinstance(g, FieldNetwork)]

    def lone_calibrator(self) -> Calibrator | None:
        """η, if there is no g."""
        return self.calibrator if self.field_network is None else None

    @property
    def has_direct_fit(self) -> bool:
        """Whether η has a direct fit, or there is no η."""
        return all(part.has_direct_fit for part in self.calibrators())

    @property
    def is_adapted(self) -> bool:
        """Whether η and the networks are adapted."""
        return all(calibrator.is_adapted for calibrator in self.calibrators()) and all(
            member.is_adapted for member in self.members if isinstance(member, FieldNetwork)
        )

    def build(
        self, logits_shape: Shape | None = None, features_shape: Mapping[str, Shape] | None = None
    ) -> None:
        """Builds both parts."""
        if self.calibrator is not None and not self.calibrator.built:
            self.calibrator.build((None, *self.compute_output_shape(logits_shape or ())[-1:]))
        for member in self.members:
            if not member.built:
                member.build(features_shape)
        self.built = True

    def call(self, logits: Tensor, features: Features) -> Tensor:
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

    def as_columns(self, values: Tensor, name: str, num_columns: int | None = None) -> Tensor:
        """Logits as a tensor (batch, columns).

        Args:
            values: Logits passed to the head, or the output of one of its parts.
            name: What they are, for the message.
            num_columns: Required number of columns; None allows any.

        Returns:
            A tensor.

        Raises:
            ValueError: If the shape is wrong.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `as_columns`.")

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Adapts η and the networks to the development set."""
        for calibrator in self.calibrators():
            calibrator.adapt(logits, labels, sample_weight)
        for member in self.members:
            if isinstance(member, FieldNetwork):
                member.adapt({} if features is None else features)

    def fit_rows(
        self,
        rows: Rows,
        features: Mapping[str, np.ndarray],
        settings: FitSettings,
        verbose: int,
    ) -> NeuralFitSummary:
        """Fits η exactly, and trains the network as long as the held-out log loss improves."""
        names = features if self.feature_names is None else self.feature_names
        columns = {name: features[name] for name in names}
        found = self._cross_fit(rows, columns, settings, verbose)
        num_iterations, converged = 0, True
        for calibrator in self.calibrators():
            fit = calibrator.fit_rows(rows)
            num_iterations, converged = fit.num_iterations, fit.converged
        if found is not None:
            num_iterations = sum(found.epochs)
            if found.corrections is not None and isinstance(self.calibrator, ILPS):
                fit_under(self.calibrator, rows, found.corrections)
        for number, member in enumerate(self.members):
            if found is not None and found.weights:
                member.set_weights(found.weights[number])
            else:
                _set_to_zero(member, columns)
        summary = self.summary_of(rows, columns, num_iterations, converged)
        figures = {} if found is None else found.figures()
        return NeuralFitSummary(**{**vars(summary), **figures})

    def _cross_fit(
        self,
        rows: Rows,
        columns: Mapping[str, np.ndarray],
        settings: FitSettings,
        verbose: int,
    ) -> CrossFit | None:
        """Cross-fits η and the network; None without a network or with too few rows."""
        if self.field_network is None:
            return None
        folds = settings.folds
        if folds is None:
            folds = self.num_members if self.num_members > 1 else _NUM_FOLDS
        fold = fold_of_rows(folds, rows, settings.seed)
        num_folds = int(fold.max()) + 1
        if self.num_members not in (1, num_folds):
            raise ValueError(
                "Argument `num_members` must be 1 or the number of folds, because each member is "
                f"trained on the rows outside one fold. Received: {self.num_members} members and "
                f"{num_folds} folds."
            )
        if not enough_for(num_folds, rows):
            return None
        return cross_fit(
            self.calibrator,
            self.field_network,
            rows,
            columns,
            fold,
            settings,
            verbose=verbose,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        parts = {"calibrator": self.calibrator, "field_network": self.field_network}
        return {
            **super().get_config(),
            **{k: part and keras.saving.serialize_keras_object(part) for k, part in parts.items()},
            "num_members": self.num_members,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates the layer from its `get_config`."""
        parts = {
            name: config[name] and keras.saving.deserialize_keras_object(config[name])
            for name in ("calibrator", "field_network")
        }
        return cls(**{**config, **parts})


def _first_rows(columns: Mapping[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    return {name: column[:number] for name, column in columns.items()}


def _set_to_zero(network: keras.layers.Layer, columns: Mapping[str, np.ndarray]) -> None:
    """Makes g = 0: resets the network if a fresh one gives 0, else sets its weights to 0."""
    fresh = copy_of(network)
    if np.any(ops.convert_to_numpy(fresh(_first_rows(columns, 100)))):
        for weight in network.trainable_weights:
            weight.assign(ops.zeros(weight.shape, weight.dtype))
    else:
        if isinstance(fresh, FieldNetwork):
            fresh.adapt(columns)
        network.set_weights(fresh.get_weights())
