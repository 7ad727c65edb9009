"""PosteriorLayer: the base class of calibrators and heads, with intervals of probabilities."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike
from scipy.special import expit, ndtri

from keras_calibration._compat import unnumbered_variables
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.head_logits import row_slices

_POSTERIOR = "posterior_"


class PosteriorLayer(keras.layers.Layer):
    """Base of `Calibrator` and `Head`: intervals of the calibrated probability.

    A layer has intervals if it implements `logit_standard_deviation`. If its direct fit finds the
    posterior, it creates weights for it with `add_posterior`, last of all weights, and assigns them
    with `keep_posterior` at the end of the fit. `interval` then also refuses to answer before the
    fit, and after weights were changed in another way, for example by training.
    """

    # A number of the weights that the posterior belongs to, negative after a fit with sample
    # weights that are not counts; 0 before a fit.
    _posterior_checksum: keras.Variable | None = None

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        """As `keras.layers.Layer.add_weight`."""
        with unnumbered_variables():
            return super().add_weight(*args, **kwargs)

    def interval(
        self,
        logits: ArrayLike,
        features: Mapping[str, ArrayLike] | None = None,
        *,
        level: float = 0.95,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Computes an interval of the calibrated probability of each row.

        The interval is `σ(η ± z s)`: the calibrated logit η has a normal posterior with standard
        deviation s, in the Laplace approximation of the last direct fit, so that σ(η) has a
        logit-normal one. With 100 rows of a field value it is wide, with 100,000 narrow.

        It is an interval of the probability itself, a parameter that is estimated from a finite
        number of rows, and not of the label. It assumes that the rows of the fit are independent
        and resemble those to come, and that the form of the calibrator holds: it knows nothing of
        drift, nor of rows in which the base model errs in a way that the head cannot express. As in
        the fit, a sample weight of 2 counts as two rows. After a fit with weights that are not
        whole numbers, such as inverse sampling rates, there is no interval: it would hold the truth
        in 34 to 79 % of cases where 95 % are asked for. Inverse rates that happen to be whole
        numbers cannot be told from counts.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1).
            features: A mapping of feature names to arrays with n rows. A calibrator reads none.
            level: Posterior probability of the interval, in (0, 1).

        Returns:
            Lower and upper probabilities, float64, in the shape that the layer returns for these
            logits. They lie in (0, 1), up to rounding. Both are NaN for a NaN logit.

        Raises:
            ValueError: If the layer has no interval, was not fitted by its direct fit, was fitted
                with sample weights that are not counts, or its weights were changed after the fit;
                or if `level` is out of its range.

        Example:
            >>> from keras_calibration.layers import BiasCorrection
            >>> layer = BiasCorrection()
            >>> summary = layer.fit(np.zeros(100), np.arange(100) < 20)
            >>> lower, upper = layer.interval([0.0])  # about 20 of 100
            >>> lower.round(3), upper.round(3)
            (array([0.133]), array([0.29]))
        """
        if not 0 < level < 1:
            raise ValueError(
                "Argument `level` must be between 0 and 1, for example 0.95. "
                f"Received: level={level!r}."
            )
        logits = np.atleast_1d(logits)
        columns = self.read_features(features, len(logits))
        bounds = []
        # At least one part, so that the layer is called, and built, also with no rows.
        for part in row_slices(max(len(logits), 1)):
            given = logits[part], {name: column[part] for name, column in columns.items()}
            calibrated = self.calibrated_logits(*given)
            self.check_posterior()
            deviation = self.logit_standard_deviation(*given)
            logit, away = (
                ops.convert_to_numpy(each).astype("float64") for each in (calibrated, deviation)
            )
            away *= interval_width(level)
            bounds.append((expit(logit - away), expit(logit + away)))
        lower, upper = map(np.concatenate, zip(*bounds, strict=True))
        return lower, upper

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
            "PlattScaling, BiasCorrection, TemperatureScaling, BetaCalibration, QuadraticScaling."
        )

    def calibrated_logits(self, logits: Tensor, features: Features) -> Tensor:
        """The layer's output for these rows."""
        raise NotImplementedError(f"{type(self).__name__} does not define `calibrated_logits`.")

    def read_features(
        self, features: Mapping[str, ArrayLike] | None, num_rows: int
    ) -> dict[str, np.ndarray]:
        """The features that the layer reads, as arrays; raises if they do not fit the rows."""
        return {}

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

    def keep_posterior(self, of_counts: bool, **values: np.ndarray) -> None:
        """Assigns the weights of the posterior, if there are any, at the end of a direct fit.

        Args:
            of_counts: Whether the sample weights of the fit are numbers of rows
                (`data_checks.are_counts`); if not, `interval` refuses.
            **values: Name of a weight → its value.
        """
        if self._posterior_checksum is None:
            return
        for name, value in values.items():
            getattr(self, f"_{_POSTERIOR}{name}").assign(value)
        checksum = _checksum(self.weights)
        self._posterior_checksum.assign(checksum if of_counts else -checksum)

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
                "Argument `sample_weight` of the fit must hold whole numbers, counts of rows, for "
                f"the layer to have an interval. Received: a {name} fitted with weights that are "
                "not, such as inverse sampling rates, with which an interval would be too narrow. "
                "Fit to rows that were not sampled, without weights or with counts."
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
