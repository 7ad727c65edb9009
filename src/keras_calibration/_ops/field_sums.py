"""Sums over the rows of each field value, and the field errors computed from them."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from calibration_records._limits import EXACT_WHOLE_NUMBERS
from keras_calibration._ops.sums_by_cell import sums_by_cell
from keras_calibration._typing import Tensor


def field_sums(
    labels: Tensor,
    predictions: Tensor,
    weights: Tensor,
    ids: Tensor,
    num_values: int,
    is_weighted: bool = True,
) -> Tensor:
    """Sums over the rows of each field value: residuals, positives, rows, and their noise.

    The columns are `Σ w (y - p)`, `Σ w y`, `Σ w`, `Σ w²`, `Σ w² p (1 - p)`, `Σ p` and `Σ p²`. They
    add up over batches, replicas and shards. The field errors use the first three; the others
    determine how far chance alone moves them. The last two are unweighted and exclude rows of
    weight 0.

    Args:
        labels: Labels y, float, shape `(n,)`.
        predictions: Probabilities p, of the same dtype, shape `(n,)`.
        weights: Weights w, of the same dtype, shape `(n,)`.
        ids: Field values, whole numbers in [0, num_values), shape `(n,)`. All other ids, also NaN,
            count as one more value, "other".
        num_values: Number of field values.
        is_weighted: Whether weights may differ from 0 and 1. If not, only four columns are summed;
            the others follow from them.

    Returns:
        A tensor of shape `(num_values + 1, 7)`; the last row is "other".

    Raises:
        ValueError: If the ids are strings.

    Example:
        >>> ones = ops.ones((3,))
        >>> print(field_sums(ops.array([1.0, 0.0, 1.0]), 0.5 * ones, ones, [0, 0, 7], 1).numpy())
        [[0.   1.   2.   2.   0.5  1.   0.5 ]
         [0.5  1.   1.   1.   0.25 0.5  0.25]]
    """
    residuals = weights * (labels - predictions)
    # The last two columns count a row as one, whatever its weight, unless the weight is 0.
    counted = ops.where(weights > 0, predictions, 0.0)
    cell = known_ids(ids, num_values)
    num_cells = num_values + 1
    if not is_weighted:
        # With weights of 0 and 1, w² = w. Four sums then give all seven: Σ w y is the sum of
        # Σ w (y - p) and Σ p, and Σ w² p (1 - p) = Σ p - Σ p².
        columns = [residuals, weights, counted, ops.square(counted)]
        sums = sums_by_cell(columns, cell, num_cells)
        residual, rows, predicted, square = ops.unstack(sums, 4, axis=1)
        # On a GPU, where sums are in no fixed order, the difference may be below 0.
        noise = ops.maximum(predicted - square, 0.0)
        return ops.stack(
            [residual, residual + predicted, rows, rows, noise, predicted, square], axis=1
        )
    # If p is right, the variance of the residual w (y - p) is w² p (1 - p): the noise of a sum.
    squares = ops.square(weights)
    columns = [residuals, weights * labels, weights, squares]
    columns += [squares * predictions * (1 - predictions), counted, ops.square(counted)]
    # XLA adds eight columns of a row, a power of two, faster than seven on a GPU.
    return sums_by_cell([*columns, ops.zeros_like(counted)], cell, num_cells)[:, :7]


def known_ids(ids: Tensor, num_values: int | Tensor) -> Tensor:
    """Ids as int32, with `num_values` ("other") in place of every id outside [0, num_values)."""
    ids = exact_ids(refuse_strings(id_tensor(ids)), num_values)
    if keras.backend.standardize_dtype(ids.dtype) in ("bool", "int8", "uint8", "int16", "uint16"):
        ids = ops.cast(ids, "int32")  # `num_values` may not fit the narrower dtype
    # Compared before the cast: numbers beyond int32 cannot be cast.
    is_known = ops.logical_and(ids >= 0, ids < num_values)
    return ops.where(is_known, ops.cast(ids, "int32"), num_values)


def id_tensor(ids: Tensor) -> Tensor:
    """Ids as a tensor; numbers beyond int32, in which JAX computes, stay outside every vocabulary.

    Example:
        >>> print(ops.convert_to_numpy(id_tensor(np.array([3, 2**32 + 1]))))
        [         3 2147483647]
    """
    if isinstance(ids, np.ndarray) and ids.dtype.name in ("int64", "uint64", "uint32"):
        ids = np.clip(ids, 0 if ids.dtype.kind == "u" else -(2**31), 2**31 - 1)
    return ops.convert_to_tensor(ids)


def ids_outside(ids: Tensor, num_values: int) -> Tensor:
    """Which ids are neither in [0, num_values) nor "other", which is -1 or NaN.

    Example:
        >>> print(ops.convert_to_numpy(ids_outside(ops.array([-2.0, -1.0, 0.5, 1.0, 2.0]), 2)))
        [ True False  True False  True]
    """
    is_unknown = known_ids(ids, num_values) == num_values
    dtype = keras.backend.standardize_dtype(ids.dtype)
    # These dtypes cannot hold -1 or NaN, so none of their ids is "other".
    if dtype == "bool" or dtype.startswith("uint"):
        return is_unknown
    is_other = ids == -1
    if "float" in dtype:
        is_other = ops.logical_or(is_other, ops.isnan(ids))
    return ops.logical_and(is_unknown, ops.logical_not(is_other))


def exact_ids(ids: Tensor, num_values: int | Tensor | None = None) -> Tensor:
    """Float ids as integers, with -1 for NaN, fractions, and ids that the dtype may merge.

    Raises if the dtype cannot hold `num_values` different ids.

    Example:
        >>> print(exact_ids(ops.array([3.0, 0.5, float("nan")]), 4).numpy())
        [ 3 -1 -1]
    """
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "float" not in dtype:
        return ids
    most = EXACT_WHOLE_NUMBERS[dtype]
    if num_values is not None and np.max(num_values) > most:
        raise ValueError(
            f"Ids of {np.max(num_values):,} field values must be integers. Received: ids of dtype "
            f"{dtype}, which holds whole numbers exactly only up to {most:,}. Cast them to int64 "
            'before they become floats; for an input, declare it with dtype="int64".'
        )
    if dtype in ("float16", "bfloat16"):
        ids = ops.cast(ids, "float32")  # in which the limits below are exact
    # From `most` on, neighbouring whole numbers become the same float: such an id is ambiguous.
    is_exact = ops.logical_and(ids == ops.floor(ids), ops.abs(ids) < most)
    return ops.cast(ops.where(is_exact, ids, -1.0), "int64" if dtype == "float64" else "int32")


def refuse_strings(ids: Tensor) -> Tensor:
    """The ids; raises if they are strings."""
    if keras.backend.standardize_dtype(ids.dtype) == "string":
        raise ValueError(
            "Field values must be integers in [0, num_values). Received: strings. Convert them "
            "first, for example with keras.layers.StringLookup."
        )
    return ids


def field_ece_from_sums(sums: Tensor) -> Tensor:
    """Field-level expected calibration error: `(1/n) Σ_z |Σ_{i: z_i = z} (y_i - p_i)|`.

    Args:
        sums: The result of `field_sums`, summed over all batches; leading axes hold several.

    Returns:
        A scalar, or a tensor of the leading axes. NaN if there are no rows.

    Example:
        >>> ones = ops.ones((3,))
        >>> sums = field_sums(ops.array([1.0, 0.0, 1.0]), 0.5 * ones, ones, [0, 0, 1], 2)
        >>> round(float(field_ece_from_sums(sums)), 4)
        0.1667

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 5.
    """
    return ops.sum(ops.abs(sums[..., 0]), axis=-1) / ops.sum(sums[..., 2], axis=-1)


def field_rce_from_sums(sums: Tensor, epsilon: float) -> Tensor:
    """Field-level relative calibration error: `(1/n) Σ_z N_z |Σ (y - p)| / Σ (y + ε)`.

    The inner sums run over the N_z rows of the field value z, so the denominator is `Σ y + ε N_z`.

    Args:
        sums: The result of `field_sums`, summed over all batches; leading axes hold several.
        epsilon: ε; 0.01 in the paper.

    Returns:
        A scalar, or a tensor of the leading axes. NaN if there are no rows to count.

    Example:
        >>> ones = ops.ones((3,))
        >>> sums = field_sums(ops.array([1.0, 0.0, 1.0]), 0.5 * ones, ones, [0, 0, 1], 2)
        >>> round(float(field_rce_from_sums(sums, epsilon=0.01)), 4)
        0.165

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 6.
    """
    residual, positives, rows = (sums[..., column] for column in range(3))
    # A value without rows has weight 0 and adds nothing. The ratio comes first: in float32, the
    # product of two sums of very large or small weights would overflow or vanish.
    relative = ops.abs(residual) * ops.divide_no_nan(rows, positives + epsilon * rows)
    return ops.sum(relative, axis=-1) / ops.sum(rows, axis=-1)
