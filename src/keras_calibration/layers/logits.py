"""Logits as tensors: checks of their shapes for all heads, their dtype and their scale."""

from __future__ import annotations

from collections.abc import Mapping

import keras
from keras import ops

from keras_calibration._typing import Shape, Tensor


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
        (3, 2). Pass one number per row; for K classes, use TemperatureScaling.
    """
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        classes = "; for K classes, use TemperatureScaling" if name == "logits" else ""
        raise ValueError(
            f"The {name} of {taker} must have shape (batch,) or (batch, 1). Received: shape "
            f"{tuple(shape)}. Pass one number per row{classes}."
        )


def check_same_rows(logits: Shape | None, features: Mapping[str, Tensor], taker: str) -> None:
    """Raises if a feature has another known number of rows than the logits: it would be broadcast.

    Example:
        >>> check_same_rows((3, 1), {"site": ops.zeros(1)}, "FieldBias")
        Traceback (most recent call last):
        ...
        ValueError: The features of FieldBias must have as many rows as the logits, 3. Received:
        {'site': 1}. Pass the feature of every row.
    """
    if not logits or logits[0] is None:
        return
    shapes = {name: getattr(values, "shape", ()) for name, values in features.items()}
    counts = {name: shape[0] for name, shape in shapes.items() if shape}
    if other := {name: n for name, n in counts.items() if n not in (None, logits[0])}:
        raise ValueError(
            f"The features of {taker} must have as many rows as the logits, {logits[0]}. Received: "
            f"{other}. Pass the feature of every row."
        )


def check_columns(shape: Shape, taker: str) -> None:
    """Raises for other shapes than `(batch,)`, `(batch, 1)` and, for K classes, `(batch, K)`.

    Example:
        >>> check_columns((3, 2), "TemperatureScaling")
    """
    if len(shape) not in (1, 2) or (len(shape) == 2 and not shape[1]):
        raise ValueError(
            f"The logits of {taker} must have shape (batch,), (batch, 1) or (batch, K). Received: "
            f"shape {tuple(shape)}. Pass one logit per row, or one per class."
        )


def as_column(values: Tensor) -> Tensor:
    """Values (batch,) as a column (batch, 1); those with columns unchanged.

    Example:
        >>> as_column(ops.zeros(3)).shape
        TensorShape([3, 1])
    """
    values = ops.convert_to_tensor(values)
    # Saves an operation where possible: with one row a batch, operations dominate the latency.
    return values if len(values.shape) == 2 else ops.expand_dims(values, 1)


def is_not_finite(logits: Tensor) -> Tensor:
    """Where logits are infinite or NaN, by an operation that converters to float16 and int8 keep.

    Example:
        >>> print(is_not_finite(ops.array([2.0, float("-inf"), float("nan")])).numpy())
        [False  True  True]
    """
    # Infinity minus infinity is NaN; every finite number minus itself is 0.
    return ops.isnan(logits - logits)


def scaled_logits(logits: Tensor, scale: Tensor) -> Tensor:
    """`a l` for a > 0; an infinite logit stays infinite even if a has underflowed to 0.

    Example:
        >>> print(scaled_logits(ops.array([2.0, float("inf")]), ops.array(0.0)).numpy())
        [ 0. inf]
    """
    infinite = is_not_finite(logits)
    # The product in the branch not taken must be finite too, else the gradient of the scale is NaN.
    return ops.where(infinite, logits, ops.where(infinite, 0.0, logits) * scale)
