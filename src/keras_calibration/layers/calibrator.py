"""Calibrator: the base class of the calibrators, and functions shared by all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops
from numpy.typing import ArrayLike

from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.posterior_layer import PosteriorLayer
from keras_calibration.solvers.data_checks import Rows, check_rows, checked_logits


def calibration_dtype(dtype: str | keras.DTypePolicy | None) -> str:
    """The dtype of the calibration: float64 if the policy computes in it, else float32.

    Under a mixed or half-precision policy, a logit keeps about three digits. Most calibrations
    change it by less.

    Example:
        >>> calibration_dtype("mixed_bfloat16")
        'float32'
    """
    policy = keras.config.dtype_policy() if dtype is None else keras.dtype_policies.get(dtype)
    return "float64" if policy.compute_dtype == "float64" else "float32"


def check_column(shape: Shape, taker: str, name: str) -> None:
    """Raises for other shapes than `(batch,)` and `(batch, 1)`; a reshape would mix up the rows.

    Example:
        >>> check_column((3, 2), "ILPS", "logits")
        Traceback (most recent call last):
        ...
        ValueError: The logits of ILPS must have shape (batch,) or (batch, 1). Received: shape
        (3, 2). Pass one number per row; for one logit per class, use a layer for classes, such as
        VectorScaling or ClassNeuralCalibration.
    """
    shape = tuple(shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(
            f"The {name} of {taker} must have shape (batch,) or (batch, 1). Received: shape "
            f"{shape}. Pass one number per row; for one logit per class, use a layer for classes, "
            "such as VectorScaling or ClassNeuralCalibration."
        )


def check_labels_given(labels: ArrayLike | None, taker: str) -> None:
    """Raises if a direct fit gets no labels."""
    if labels is None:
        raise ValueError(
            f"Argument `labels` must hold a label for each row, to fit {taker}. Received: "
            "labels=None."
        )


def as_column(values: Tensor) -> Tensor:
    """Values of shape (batch,) or (batch, 1) as a column (batch, 1).

    Example:
        >>> as_column(ops.zeros(3)).shape
        TensorShape([3, 1])
    """
    values = ops.convert_to_tensor(values)
    # Saves an operation where possible: with one row a batch, operations dominate the latency.
    return values if len(values.shape) == 2 else ops.expand_dims(values, 1)


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    """The mean of tensors of one shape.

    Example:
        >>> print(mean_of([ops.array([1.0]), ops.array([2.0])]).numpy())
        [1.5]
    """
    total = sum(tensors[1:], tensors[0])
    return total / len(tensors) if len(tensors) > 1 else total


def scaled_logits(logits: Tensor, scale: Tensor) -> Tensor:
    """`a l` for a > 0; an infinite logit stays infinite even if a has underflowed to 0.

    Example:
        >>> print(scaled_logits(ops.array([2.0, float("inf")]), ops.array(0.0)).numpy())
        [ 0. inf]
    """
    infinite = ops.isinf(logits)
    # The product in the branch not taken must be finite too, else the gradient of the scale is NaN.
    return ops.where(infinite, logits, ops.where(infinite, 0.0, logits) * scale)


class Calibrator(PosteriorLayer):
    """Base of the layers that map an uncalibrated logit to a calibrated one.

    A calibrator is called on logits of shape `(batch,)` or `(batch, 1)` and returns the same shape.
    A subclass implements `calibrate` and creates its weights in `build`; their shapes must not
    depend on the input. It may override `adapt` to set up state from development data before
    training, and `fit_rows` to provide a direct fit.

    Args:
        dtype: Dtype or dtype policy; half precision becomes float32.
        **kwargs: Keyword arguments of every Keras layer (`name`, `trainable`).

    Raises:
        ValueError: If called on logits of any other shape.
    """

    def __init__(self, *, dtype: str | keras.DTypePolicy | None = None, **kwargs: Any) -> None:
        super().__init__(dtype=calibration_dtype(dtype), **kwargs)

    def call(self, logits: Tensor) -> Tensor:
        """Calibrated logits, with the shape of `logits`."""
        check_column(logits.shape, type(self).__name__, "logits")
        return self.calibrate(ops.cast(logits, self.compute_dtype))

    def calibrated_logits(self, logits: Tensor, features: Features) -> Tensor:
        """Calibrated logits, with the shape of `logits`; the features are not read."""
        return self(logits)

    def calibrate(self, logits: Tensor) -> Tensor:
        """Calibrated logits, for logits of any shape in the layer's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define `calibrate`.")

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        from_logits: bool = True,
    ) -> FitSummary:
        """Fits the curve to labelled rows, directly and exactly: no optimizer, no epochs.

        The fit is deterministic and replaces any earlier one.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1), finite.
            labels: Labels in [0, 1] (n,) or (n, 1), of both classes.
            sample_weight: Sample weights (n,) or (n, 1), not negative; ones by default.
            from_logits: Whether `logits` holds logits. Pass False for probabilities, which are then
                converted; the layer itself is always called on logits.

        Returns:
            A `FitSummary`: log loss before and after, number of steps, convergence.

        Raises:
            ValueError: If there is no row, a logit is not finite, a label is outside [0, 1], all
                labels are of one class, a weight is negative, all weights are 0, or the numbers of
                rows differ. The layer is then unchanged.

        Warns:
            UserWarning: If the logits look like probabilities or like the labels.
        """
        check_labels_given(labels, type(self).__name__)
        logits = checked_logits(logits, labels, from_logits)
        rows = check_rows(logits, labels, sample_weight, both_classes=True)
        self.ensure_built()
        return self.fit_rows(rows)

    def fit_rows(self, rows: Rows) -> FitSummary:
        """Fits to checked rows; assigns the weights only after the fit has succeeded."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define `fit_rows`, the direct fit."
        )

    @property
    def has_direct_fit(self) -> bool:
        """Whether the subclass has a direct fit."""
        return type(self).fit_rows is not Calibrator.fit_rows

    def ensure_built(self) -> None:
        """Creates the weights if no call has done so yet."""
        if not self.built:
            self.build((None, 1))

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Sets up state from development data before training; does nothing by default.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1).
            labels: Labels in [0, 1] (n,) or (n, 1).
            sample_weight: Sample weights (n,) or (n, 1).
        """

    @property
    def is_adapted(self) -> bool:
        """Whether `adapt` has been called, or is not needed."""
        return True

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """The shape of the input; raises for other logits than one per row."""
        check_column(input_shape, type(self).__name__, "logits")
        return input_shape
