"""PosteriorLayer: the part of `Head` that keeps the posterior of a fit, for intervals."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops
from scipy.special import ndtri

from keras_calibration._keras import throwaway_layers
from keras_calibration._typing import Features, Shape, Tensor

_POSTERIOR = "posterior_"


class PosteriorLayer(keras.layers.Layer):
    """Base of `Head`: the posterior of the last direct fit.

    A layer has intervals if it implements `logit_standard_deviation`. If its direct fit finds the
    posterior, it creates weights for it with `add_posterior`, last of all weights, and assigns them
    with `keep_posterior` at the end of the fit. `interval` then also refuses to answer before the
    fit, and after weights were changed in another way, for example by training.
    """

    # A number of the weights that the posterior belongs to, negative after a fit with sample
    # weights that are not numbers of rows; 0 before a fit.
    _posterior_checksum: keras.Variable | None = None

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        """As `keras.layers.Layer.add_weight`."""
        with throwaway_layers():
            return super().add_weight(*args, **kwargs)

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the calibrated logit, in the shape of the output.

        Args:
            logits: Uncalibrated logits (batch,) or (batch, 1).
            features: A mapping of feature names to tensors with `batch` rows.

        Returns:
            A tensor of standard deviations in logits. They mean something after a direct fit only.

        Raises:
            ValueError: If the layer has no interval.
        """
        raise ValueError(
            f"{type(self).__name__} has no interval, because its fit, or that of one of its parts, "
            f"gives no normal posterior. Received: {self!r}. Use FieldBias or a calibrator: ILPS, "
            "PlattScaling, BiasCorrection, TemperatureScaling, BetaCalibration; with `calibrate`, "
            'pass methods="field_bias" or methods="platt".'
        )

    def add_posterior(self, **shapes: Shape) -> None:
        """Creates the weights of the posterior; must come last in `build`.

        Args:
            **shapes: Name of a weight → its shape. The weight becomes the attribute
                `_posterior_<name>`.
        """
        for name, shape in {**shapes, "checksum": ()}.items():
            full_name = _POSTERIOR + name
            weight = self.add_weight(
                name=full_name, shape=shape, initializer="zeros", trainable=False
            )
            setattr(self, "_" + full_name, weight)

    def keep_posterior(self, are_counts: bool, **values: np.ndarray) -> None:
        """Assigns the weights of the posterior, if there are any, at the end of a direct fit.

        Args:
            are_counts: Whether the sample weights of the fit are numbers of rows
                (`data_checks.are_counts`); if not, `interval` refuses.
            **values: Name of a weight → its value.
        """
        if self._posterior_checksum is None:
            return
        for name, value in values.items():
            getattr(self, f"_{_POSTERIOR}{name}").assign(value)
        checksum = _checksum(self.weights)
        self._posterior_checksum.assign(checksum if are_counts else -checksum)

    def forget_posterior(self) -> None:
        """Notes that no fit has found a posterior, so that `interval` refuses."""
        if self._posterior_checksum is not None:
            self._posterior_checksum.assign(0.0)

    @property
    def posterior_is_of_counts(self) -> bool:
        """Whether no fit since the last one to new rows had weights that are not counts."""
        kept = self._posterior_checksum
        return kept is None or float(ops.convert_to_numpy(kept)) >= 0

    def check_posterior(self) -> None:
        """Raises if the posterior of the built layer is not that of its weights."""
        if self._posterior_checksum is None:
            return
        name = type(self).__name__
        kept = float(ops.convert_to_numpy(self._posterior_checksum))
        if kept == 0:
            raise ValueError(
                f"{name} must be fitted by `fit` before `interval`. Received: a layer without a "
                "fit. Call `fit` first."
            )
        if kept < 0:
            raise ValueError(
                "The weights of the rows of the fit must be equal, or counts of rows, for the "
                f"layer to have an interval. Received: a {name} fitted with unequal importances, "
                "such as inverse sampling rates, with which an interval would be wrong. Fit "
                'without weights, or pass weights_are="counts" if they are counts of rows; for '
                "sampled rows, see SamplingCorrection."
            )
        if kept != _checksum(self.weights):
            raise ValueError(
                f"{name} must have the weights of its last `fit`, to which the interval belongs. "
                "Received: a layer whose weights were trained or set since then. Call `fit` again."
            )


def interval_width(level: float) -> float:
    """Half the width of an interval, in standard deviations.

    Example:
        >>> round(interval_width(0.95), 4)
        1.96
    """
    return float(ndtri(0.5 + 0.5 * level))


def without_posterior(weights: Iterable[keras.Variable]) -> list[keras.Variable]:
    """The weights on which the calibrated logits depend.

    Example:
        >>> from keras_calibration.layers import PlattScaling
        >>> layer = PlattScaling()
        >>> layer.ensure_built()
        >>> [weight.name for weight in without_posterior(layer.weights)]
        ['log_scale', 'bias']
    """
    return [weight for weight in weights if not weight.name.startswith(_POSTERIOR)]


def _checksum(weights: Iterable[keras.Variable]) -> float:
    """A whole number from 1 to 2²⁴, which float32 holds, of the weights except the posterior."""
    checksum = 0
    for weight in without_posterior(weights):
        # Flat, because NumPy warns of Keras' conversion of a scalar.
        values = ops.convert_to_numpy(ops.reshape(weight, (-1,)))
        checksum = zlib.crc32(values.astype("float32").tobytes(), checksum)
    return float(1 + checksum % 2**24)
