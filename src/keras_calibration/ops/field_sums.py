"""Sums over the rows of each field value, and the field errors that they give."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops


def field_sums(labels: Any, predictions: Any, weights: Any, ids: Any, num_values: int) -> Any:
    """Per field value: `Σ w (y - p)`, `Σ w y`, `Σ w`, `Σ w²`, `Σ w² p (1 - p)`, `Σ p`, `Σ p²`.

    The sums add up over batches, replicas and shards. The field errors need the first three; the
    others tell how far chance alone moves them. The last two are not weighted, and leave out rows
    of weight 0.

    Args:
        labels: Labels y (n,), float.
        predictions: Probabilities p (n,), of the same dtype.
        weights: Weights w (n,), of the same dtype.
        ids: Field values (n,), whole numbers in [0, num_values). Any other id, NaN too, counts as
            the shared value "other".
        num_values: Number of field values.

    Returns:
        A tensor (num_values + 1, 7); the last row is "other".

    Example:
        >>> ones = ops.ones((3,))
        >>> print(field_sums(ops.array([1.0, 0.0, 1.0]), 0.5 * ones, ones, [0, 0, 7], 1).numpy())
        [[0.   1.   2.   2.   0.5  1.   0.5 ]
         [0.5  1.   1.   1.   0.25 0.5  0.25]]
    """
    squares = ops.square(weights)
    columns = [weights * (labels - predictions), weights * labels, weights]
    columns += [squares, squares * predictions * (1 - predictions)]
    counted = ops.where(weights > 0, predictions, 0.0)
    rows = ops.stack([*columns, counted, ops.square(counted)], axis=1)
    return ops.segment_sum(rows, known_ids(ids, num_values), num_segments=num_values + 1)


def known_ids(ids: Any, num_values: Any) -> Any:
    """Ids as int32, with `num_values` ("other") in place of every id outside [0, num_values).

    Args:
        ids: Whole numbers of any integer or float dtype and any shape.
        num_values: Number of known values; or an int32 array of these, one for each column.

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


def crossed_ids(ids: Sequence[Any], num_values: Sequence[int]) -> Any:
    """Ids of a cross of fields: `id_a * num_b + id_b` for two, and so on.

    Args:
        ids: The ids of each field, whole numbers (n,) each.
        num_values: The number of values of each field.

    Returns:
        An int32 tensor (n,) of ids in [0, product of `num_values`); that product itself ("other")
        where any field's id is outside its range.

    Raises:
        ValueError: If there are not as many arrays of ids as fields, or ids are strings.

    Example:
        >>> print(crossed_ids([[0, 1, 1, 9], [2, 0, 3, 0]], (2, 3)).numpy())
        [2 3 6 6]
    """
    if not isinstance(ids, tuple | list) or len(ids) != len(num_values):
        received = f"{len(ids)} arrays" if isinstance(ids, tuple | list) else type(ids).__name__
        raise ValueError(
            f"A cross of {len(num_values)} fields needs a tuple of {len(num_values)} arrays of "
            f"ids, one a field. Received: {received}."
        )
    crossed: Any = 0
    is_other: Any = False
    total = 1
    for field_ids, number in zip(ids, num_values, strict=True):
        known = known_ids(field_ids, number)
        crossed = crossed * number + known
        is_other = ops.logical_or(is_other, known == number)
        total *= number
    return ops.where(is_other, total, crossed)


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


def field_rce(sums: Any, epsilon: float, skip_without_positives: bool = False) -> Any:
    """Field-level relative calibration error: `(1/n) Σ_z N_z |Σ (y - p)| / Σ (y + ε)`.

    The inner sums run over the rows of the value z, so that the denominator is `Σ y + ε N_z`.

    Args:
        sums: What `field_sums` returns, added up over all batches.
        epsilon: ε, the paper's 0.01.
        skip_without_positives: Whether values with `Σ y = 0` are left out, of n as well.

    Returns:
        A scalar; NaN where there is no row to count.

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 6.
    """
    residual, positives, rows = sums[:, 0], sums[:, 1], sums[:, 2]
    # The weight of a value without rows is 0, and so is its share. A ratio first: in float32 the
    # product of two sums of large or small weights is past all numbers, or 0.
    relative = ops.abs(residual) * ops.divide_no_nan(rows, positives + epsilon * rows)
    if skip_without_positives:
        skipped = without_positives(sums)
        relative, rows = ops.where(skipped, 0.0, relative), ops.where(skipped, 0.0, rows)
    return ops.sum(relative) / ops.sum(rows)


def without_positives(sums: Any) -> Any:
    """Which field values have no positive label: `Σ w y = 0`.

    Args:
        sums: What `field_sums` returns, added up over all batches.

    Returns:
        A boolean tensor (num_values + 1,). False where a sum is NaN: a bad row is never left out.
    """
    residual = sums[:, 0]
    return ops.logical_and(sums[:, 1] == 0, ops.logical_not(ops.isnan(residual)))
