"""Sums over the rows of each field value, and the field errors that they give."""

from typing import Any

import keras
from keras import ops


def field_sums(labels: Any, predictions: Any, weights: Any, ids: Any, num_values: int) -> Any:
    """Per field value: `Σ w (y - p)`, `Σ w y`, `Σ w`.

    The sums add up over batches, replicas and shards.

    Args:
        labels: Labels y (n,), float.
        predictions: Probabilities p (n,), of the same dtype.
        weights: Weights w (n,), of the same dtype.
        ids: Field values (n,), whole numbers in [0, num_values). Any other id, NaN too, counts as
            the shared value "other".
        num_values: Number of field values.

    Returns:
        A tensor (num_values + 1, 3); the last row is "other".

    Example:
        >>> ones = ops.ones((3,))
        >>> print(field_sums(ops.array([1.0, 0.0, 1.0]), 0.5 * ones, ones, [0, 0, 7], 1).numpy())
        [[0.  1.  2. ]
         [0.5 1.  1. ]]
    """
    rows = ops.stack([weights * (labels - predictions), weights * labels, weights], axis=1)
    return ops.segment_sum(rows, known_ids(ids, num_values), num_segments=num_values + 1)


def known_ids(ids: Any, num_values: int) -> Any:
    """Ids as int32, with `num_values` ("other") in place of every id outside [0, num_values).

    Args:
        ids: Whole numbers of any integer or float dtype and any shape.
        num_values: Number of known values.

    Returns:
        An int32 tensor of the same shape.

    Raises:
        ValueError: If the ids are strings.

    Example:
        >>> print(known_ids([0, 4, 5, -1], 5).numpy())
        [0 4 5 5]
    """
    ids = ops.convert_to_tensor(ids)
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if dtype == "string":
        raise ValueError(
            "Field values must be whole numbers in [0, num_values). Received: strings. Turn them "
            "into numbers first, with a keras.layers.StringLookup for example."
        )
    if dtype in ("bool", "int8", "uint8", "int16", "uint16"):
        ids = ops.cast(ids, "int32")  # `num_values` may be more than these can hold
    if dtype in ("float16", "bfloat16"):
        ids = ops.cast(ids, "float32")  # or `num_values` would be rounded
    # Compared before the cast: NaN and numbers beyond int32 have no int32 of their own.
    known = ops.logical_and(ids >= 0, ids < num_values)
    return ops.where(known, ops.cast(ids, "int32"), num_values)


def field_ece(sums: Any) -> Any:
    """Field-level expected calibration error: `(1/n) Σ_z |Σ_{i: z_i = z} (y_i - p_i)|`.

    Args:
        sums: What `field_sums` returns, added up over all batches.

    Returns:
        A scalar; NaN where there is no row.

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 5.
    """
    return ops.sum(ops.abs(sums[:, 0])) / ops.sum(sums[:, 2])


def field_rce(sums: Any, epsilon: float) -> Any:
    """Field-level relative calibration error: `(1/n) Σ_z N_z |Σ (y - p)| / Σ (y + ε)`.

    The inner sums run over the rows of the value z, so that the denominator is `Σ y + ε N_z`.

    Args:
        sums: What `field_sums` returns, added up over all batches.
        epsilon: ε, the paper's 0.01.

    Returns:
        A scalar; NaN where there is no row.

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 6.
    """
    residual, positives, rows = sums[:, 0], sums[:, 1], sums[:, 2]
    # The weight of a value without rows is 0, and so is its share.
    relative = ops.divide_no_nan(ops.abs(residual) * rows, positives + epsilon * rows)
    return ops.sum(relative) / ops.sum(rows)
