"""Posterior: the part of a head that stores the posterior of a fit, for intervals."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops
from scipy.special import expit, ndtri

from keras_calibration._rows.columns import take
from keras_calibration._solvers.row_blocks import row_parts
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.fits import heads_in

if TYPE_CHECKING:
    from keras_calibration.layers.head import Head

_PREFIX = "posterior_"


class Posterior:
    """The posterior of the last direct fit of a layer, in weights of the layer.

    A head with intervals creates it at the end of `build`, as its attribute `posterior`, returns
    its values in `Fit.posterior`, and implements `logit_standard_deviation`. `interval` then raises
    before a fit, and after training or an assignment has changed the weights.

    The layer gets the weights `posterior_<name>` of `shapes` and two more: `posterior_of`, a
    checksum of the layer's other weights at the end of the fit, 0 before one; and
    `posterior_is_of_counts`, 0 after a fit with sample weights that are not numbers of rows.

    Args:
        layer: The layer, whose other weights exist already.
        **shapes: Name of a weight → its shape.
    """

    def __init__(self, layer: keras.layers.Layer, **shapes: Shape) -> None:
        self._layer = layer
        starts = {**dict.fromkeys(shapes, "zeros"), "of": "zeros", "is_of_counts": "ones"}
        self._weights = {
            name: layer.add_weight(
                name=_PREFIX + name, shape=shapes.get(name, ()), initializer=start, trainable=False
            )
            for name, start in starts.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        """The value of a weight, by its name."""
        return ops.convert_to_tensor(self._weights[name])

    def keep(self, values: Mapping[str, Any] | None) -> None:
        """Assigns the weights, by name, at the end of a direct fit; None if it has no posterior."""
        # The checksum ties the posterior to the weights of the fit. 0 belongs to no weights.
        is_of = 0.0 if values is None else _compute_checksum(self._layer.weights)
        for name, value in {"is_of_counts": 1.0, **(values or {}), "of": is_of}.items():
            self._weights[name].assign(value)

    @property
    def is_of_counts(self) -> bool:
        """Whether the weights of the last `fit`, and of all updates since, were counts."""
        return bool(np.asarray(self["is_of_counts"]))

    def check(self) -> None:
        """Raises if the posterior does not belong to the layer's weights."""
        name = type(self._layer).__name__
        checksum = float(np.asarray(self["of"]))
        # Training, or another assignment, changes the weights but not the stored checksum.
        if checksum != _compute_checksum(self._layer.weights):
            state = "were trained or set since then" if checksum else "are not from a fit"
            raise ValueError(
                f"{name} must be fitted by `fit` before `interval`, and then be left as it is. "
                f"Received: a layer whose weights {state}. Call `fit` first; if `calibrate` has "
                'changed nothing, ask it for one method, for example methods="platt".'
            )
        # The Hessian counts a row of weight 2 as two independent rows, which an importance is not.
        if not self.is_of_counts:
            raise ValueError(
                "The weights of the rows of the fit must be equal, or counts of rows, for "
                f"`interval`. Received: a {name} fitted with unequal importances, for which it "
                'would be wrong. Fit without weights, or pass weights_are="counts"; for sampled '
                "rows, see SamplingCorrection."
            )


def bounds_of(
    head: Head, logits: np.ndarray, features: Features, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper probabilities of the rows, as `Head.interval`; raises without a posterior."""
    if logits.ndim == 2 and logits.shape[1] > 1:
        raise ValueError(
            f"{type(head).__name__} has no interval of class probabilities. Received: logits of "
            f"shape {logits.shape}. Intervals exist for one logit per row."
        )
    bounds = []
    for part in row_parts(max(len(logits), 1)):  # also without rows, so that the head is built
        inputs = logits[part], take(features, part)
        pair = head(*inputs), head.logit_standard_deviation(*inputs)
        logit, deviation = (np.asarray(output).astype("float64") for output in pair)
        away = interval_width(level) * deviation
        # Normal in logits, not in probabilities: so the bounds stay in (0, 1).
        bounds.append((expit(logit - away), expit(logit + away)))
    for inner in heads_in(head):
        if inner.posterior is not None:
            inner.posterior.check()
    lower, upper = map(np.concatenate, zip(*bounds, strict=True))
    return lower, upper


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
    return [weight for weight in weights if not weight.name.startswith(_PREFIX)]


def _compute_checksum(weights: Iterable[keras.Variable]) -> float:
    """A checksum of the weights except the posterior, from 1 to 2²⁴: float32 holds it exactly."""
    checksum = 0
    for weight in without_posterior(weights):
        # Flat, because NumPy warns of Keras' conversion of a scalar.
        values = np.asarray(ops.reshape(weight, (-1,)))
        checksum = zlib.crc32(values.astype("float32").tobytes(), checksum)
    # 0 is left for a layer without a fit.
    return float(1 + checksum % 2**24)
