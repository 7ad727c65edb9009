"""NeuralCalibration: a calibrator of the logits plus a network over the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import instance, integer, refused
from keras_calibration._rows.columns import take
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.row_folds import fold_of_rows
from keras_calibration._solvers.total_bias import bias_of_total
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.calibrator import check_calibrator
from keras_calibration.layers.cross_fitting import CrossFit, cross_fit, enough_for, fit_under
from keras_calibration.layers.field_ids import Reads
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import weights_of
from keras_calibration.layers.head import Head
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.logits import as_column, check_column
from keras_calibration.layers.network_trainer import Weights, copy_of, outputs_of

_NUM_FOLDS = 3  # with a single member


@keras.saving.register_keras_serializable(package="keras_calibration")
class NeuralCalibration(Head):
    """The Neural Calibration head: calibrated logits `η(l) + g(x)`.

    The calibrated probability is `q(l, x) = σ(η(l) + g(x))` (Pan et al., eq. 7). η corrects the
    curve as a whole, and g the segments that the base model gets wrong. With the parts of this
    package, the head starts as the identity.

    The direct fit works as follows:

    1. For each fold of the development set, η is fitted on the other folds (convex, exact). g is
       trained on top of it, starting from 0, until the log loss of the fold has not improved for
       some epochs.
    2. Each member keeps the weights of the best epoch of its fold; a single member, those of the
       first fold. So the cross-fitted log loss is that of a single member, and the mean of the
       members predicts better still. No network is trained on all rows: without held-out rows,
       training cannot stop in time, and a few epochs too many ruin it.
    3. η is fitted on all rows; an `ILPS` is fitted under the cross-fitted g if that lowers the
       cross-fitted log loss. A bias then makes the mean prediction equal to the mean label.

    g is set to 0 if it does not lower the cross-fitted log loss by at least one standard error, or
    if there are not ten rows per fold of each class.

    Unlike in the paper, η is not trained further by gradient together with g.

    Args:
        calibrator: η, a head that reads no features, for example `ILPS()`; None leaves the logits
            as they are.
        field_network: g, a layer or Keras model from a mapping of features to a logit, for example
            `FieldNetwork(...)`; None leaves g out. A custom layer may declare its features in
            `feature_names`.
        num_members: Number of networks; g is their mean. In `fit` each is trained on another part
            of the development set; with 1, three are trained and one is kept. Three members predict
            better at the same training cost.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If an argument has a wrong type, or `num_members` is not a positive integer;
            when called, if the network has more than one output.

    Example:
        >>> from keras_calibration.layers import ILPS, FieldNetwork, FitSettings
        >>> head = NeuralCalibration(ILPS(), FieldNetwork({"site": 3}))
        >>> print(head(np.array([0.5, -1.0]), {"site": np.array([0, 2])}).numpy())
        [[ 0.5]
         [-1. ]]
        >>> site = np.arange(3000) % 3
        >>> labels = (site == 0) | (np.arange(3000) % 2 == 0)
        >>> settings = FitSettings(learning_rate=0.01, max_epochs=5)
        >>> head.fit(np.zeros(3000), labels, {"site": site}, settings=settings).network_kept
        True

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 7.
    """

    def __init__(
        self,
        calibrator: Head | None = None,
        field_network: keras.layers.Layer | None = None,
        num_members: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_calibrator(calibrator)
        if field_network is not None:
            instance("field_network", field_network, keras.layers.Layer, "a Keras layer, or None")
        self.num_members = integer("num_members", num_members, 1)
        if num_members > 1 and field_network is None:
            raise refused("num_members", "1 without `field_network`", num_members)
        self.calibrator, self.field_network = calibrator, field_network
        self.draws_by_chance = field_network is not None
        # The first member is the network of the caller; the others are copies with new weights.
        self._other_members = [copy_of(field_network) for _ in range(num_members - 1)]

    def parts(self) -> list[Head]:
        """η, if there is one."""
        return [] if self.calibrator is None else [self.calibrator]

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

    def reads(self) -> Reads:
        """What g reads, if it is a `FieldNetwork`."""
        network = self.field_network
        return network.reads() if isinstance(network, FieldNetwork) else Reads()

    def check_logits(self, shape: Shape) -> None:
        """Raises for other logits than one per row."""
        check_column(shape, type(self).__name__, "logits")

    def build(
        self, logits_shape: Shape | None = None, features_shape: Mapping[str, Shape] | None = None
    ) -> None:
        """Builds both parts."""
        if self.calibrator is not None:
            self.calibrator.ensure_built()
        for member in self.members:
            if not member.built:
                member.build(features_shape)
        self._bias = self.add_weight(name="bias", shape=(), initializer="zeros", trainable=False)
        self.built = True

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits (batch, 1)."""
        calibrated = ops.cast(as_column(logits), self.compute_dtype)
        if self.calibrator is not None:
            calibrated = self.calibrator(calibrated)
        if self.field_network is None:
            return calibrated
        corrections = [as_column(member(features)) for member in self.members]
        check_column(corrections[0].shape, type(self).__name__, "corrections")
        corrections = [ops.cast(values, calibrated.dtype) for values in corrections]
        # The mean of the members' logits. The sum starts with the first one, which saves an
        # operation.
        return calibrated + sum(corrections[1:], corrections[0]) / len(corrections) + self._bias

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Adapts η and the networks to the development set."""
        super().adapt(logits, labels, features, sample_weight)
        for member in self.members:
            if isinstance(member, FieldNetwork):
                member.adapt({} if features is None else features)

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits η exactly, and trains the network as long as the held-out log loss improves."""
        # The trainer passes all features to the network: leave out those that it does not read.
        rows = rows.only(self.feature_names)
        training = self._cross_fit(rows, settings)
        curves = [part.fitted(rows, settings) for part in self.parts()]
        if training.corrections is not None and isinstance(self.calibrator, ILPS):
            under = fit_under(self.calibrator, rows, training.corrections)
            # Without posterior: its Hessian knows nothing of the error of g.
            curves = [
                replace(
                    curves[0],
                    logits=lambda rows: under.at(rows.logits),
                    weights=under.weights,
                    posterior=None,
                )
            ]
        networks = training.weights[: self.num_members]
        unbiased = self._build_sum(rows, curves, networks)
        at_rows = unbiased(rows)
        # Each kept network was trained on other folds and has its own error of the mean: the bias
        # gives their mean the total of the labels.
        bias = float(bias_of_total(at_rows, rows)[0]) if networks else 0.0
        steps = [curve.summary.num_iterations for curve in curves]
        summary = FitSummary.of(
            rows,
            at_rows + bias,
            num_iterations=sum(training.figures.get("epochs", steps)),
            converged=all(curve.summary.converged for curve in curves),
        )
        weights = {
            "_bias": bias,
            # Without a network that helps, g = 0: the head is η.
            "members": networks or [_find_zero_weights(g, rows.features) for g in self.members],
        }
        summary = replace(summary, **training.figures)
        return Fit(summary, lambda rows: unbiased(rows) + bias, weights, tuple(curves))

    def _build_sum(
        self, rows: Rows, curves: Sequence[Fit], networks: Sequence[Weights]
    ) -> Callable[[Rows], np.ndarray]:
        """`η(l) + g(x)` as a function of rows, with networks of these weights; without any, η."""
        network = copy_of(self.field_network) if networks else None
        if network is not None:
            # A call on one row creates the variables, which get the weights of each member in turn.
            network(take(rows.features, slice(1)))

        def unbiased(rows: Rows) -> np.ndarray:
            curve = curves[0].logits(rows) if curves else rows.logits
            if network is None:
                return curve
            outputs = [outputs_of(network, weights, rows.features) for weights in networks]
            return np.asarray(curve + np.mean(outputs, axis=0))

        return unbiased

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the logit, if there is no network; else raises."""
        if self.calibrator is None or self.field_network is not None:
            return super().logit_standard_deviation(logits, features)
        return self.calibrator.logit_standard_deviation(as_column(logits))

    def _cross_fit(self, rows: Rows, settings: FitSettings) -> CrossFit:
        """Cross-fits η and the network; empty without a network or with too few rows."""
        if self.field_network is None:
            return CrossFit()
        # Each member is the network of one fold, so there are as many folds as members.
        usual = self.num_members if self.num_members > 1 else _NUM_FOLDS
        folds = usual if settings.folds is None else settings.folds
        fold = fold_of_rows(folds, rows, settings.seed)
        num_folds = int(fold.max()) + 1
        if self.num_members not in (1, num_folds):
            raise refused("num_members", f"1 or the number of folds, {num_folds}", self.num_members)
        if not enough_for(num_folds, rows):
            return CrossFit()
        return cross_fit(self.calibrator, self.field_network, rows, fold, settings)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        parts = {"calibrator": self.calibrator, "field_network": self.field_network}
        return {
            **super().get_config(),
            **keras.saving.serialize_keras_object(parts),
            "num_members": self.num_members,
        }


def _find_zero_weights(
    network: keras.layers.Layer, columns: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The weights with which g = 0: those of a new network if it returns 0, else zeros."""
    fresh = copy_of(network)
    # A network that does not start from 0 gets zeros for all trainable weights. Weights that are
    # not trained stay, for example those of a normalization.
    if np.any(np.asarray(fresh(take(columns, slice(100))))):
        built = network if network.built else fresh
        trained = {id(weight) for weight in built.trainable_weights}
        return [np.array(w) * (id(w) not in trained) for w in built.weights]
    # Place its knots all the same, so that the head can later be trained by gradient.
    if isinstance(fresh, FieldNetwork):
        fresh.adapt(columns)
    return weights_of(fresh)
