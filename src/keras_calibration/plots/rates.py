"""Predicted and observed rates by group, with intervals: the mathematics of the plots."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration_records._columns import warn_of_other_order
from calibration_records._predictions import probabilities_of
from keras_calibration._rows.columns import numbers_of
from keras_calibration._rows.labels import label_advice
from keras_calibration._rows.weights import rows_that_count


class Rates(NamedTuple):
    """Predicted and observed rate of each of G groups, arrays of shape `(G,)`.

    Args:
        predicted: Weighted mean of the predicted probabilities, float64. NaN for an empty group.
        observed: Weighted mean of the labels, float64. NaN for an empty group.
        lower: Lower end of the 95 % Wilson interval of the observed rate, float64.
        upper: Upper end of the interval.
        num_rows: Number of rows of positive weight, int64.
    """

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    num_rows: NDArray[np.int64]

    def interval_lengths(self) -> NDArray[np.float64]:
        """Lengths of the interval below and above the observed rate, shape `(2, G)`."""
        # By rounding, an end of the interval may be past a rate of 0 or 1.
        return np.maximum([self.observed - self.lower, self.upper - self.observed], 0.0)


def wilson_interval(
    rate: ArrayLike, num_rows: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The Wilson score interval of a binomial rate.

    The ends are the two rates q that solve `(rate - q)² = z² q (1 - q) / n`:
    `(rate + z²/2n ± z sqrt(rate (1 - rate) / n + z²/4n²)) / (1 + z²/n)`, where z is the normal
    quantile of `(1 + confidence) / 2`.

    Args:
        rate: Observed rates in [0, 1].
        num_rows: Numbers of rows n, or effective numbers if rows have weights. For 0 rows, the
            interval is [0, 1].
        confidence: Coverage of the interval, in (0, 1).

    Returns:
        Lower and upper ends, float64, of the broadcast shape.

    Example:
        >>> lower, upper = wilson_interval(0.0, 10)
        >>> print(f"{lower:.3f} {upper:.3f}")
        0.000 0.278

    Reference:
        Wilson, *Probable inference, the law of succession, and statistical inference*, JASA 1927.
    """
    z_squared = statistics.NormalDist().inv_cdf((1.0 + confidence) / 2.0) ** 2
    rate, num_rows = np.broadcast_arrays(
        np.asarray(rate, np.float64), np.asarray(num_rows, np.float64)
    )
    # Multiplied by n, so that 0 rows need no special case. Their rate may be NaN.
    rate = np.where(num_rows > 0.0, rate, 0.5)
    centre = num_rows * rate + z_squared / 2.0
    half_width = np.sqrt(z_squared * (num_rows * rate * (1.0 - rate) + z_squared / 4.0))
    scale = num_rows + z_squared
    lower = np.clip((centre - half_width) / scale, 0.0, 1.0)
    return lower, np.clip((centre + half_width) / scale, 0.0, 1.0)


def bin_by_mass(
    probabilities: ArrayLike, num_bins: int, sample_weight: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Assigns rows to bins of equal mass, in the order of their probabilities.

    Equal probabilities share a bin: with W the total weight, a distinct probability with weight w,
    and weight b below it, goes to bin `floor(num_bins (b + w/2) / W)`. Bins left empty by ties are
    dropped and the others renumbered.

    Args:
        probabilities: Probabilities, shape `(n,)`. Logits give the same bins.
        num_bins: Number of bins, at least 1. Ties may leave fewer.
        sample_weight: Weights, shape `(n,)`; None for ones.

    Returns:
        The bin of each row, int64, shape `(n,)`.

    Raises:
        ValueError: If `num_bins` is below 1.

    Example:
        >>> bin_by_mass([0.1, 0.9, 0.2, 0.3], 2)
        array([0, 1, 0, 1])
    """
    if num_bins < 1:
        raise ValueError(f"Argument `num_bins` must be at least 1. Received: num_bins={num_bins}.")
    distinct, inverse = np.unique(np.asarray(probabilities), return_inverse=True)
    weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    mass = np.bincount(inverse, weights, minlength=distinct.size).astype(np.float64)
    above = np.cumsum(mass)
    middle = (above - mass / 2.0) / above[-1]
    # Rounding must not decide about a middle on the edge: a common factor of the weights would.
    bins = np.minimum(num_bins * middle + 1e-9, num_bins - 1).astype(np.int64)
    return np.unique(bins, return_inverse=True)[1][inverse].astype(np.int64)


def group_rates(
    labels: ArrayLike,
    probabilities: ArrayLike,
    groups: ArrayLike,
    num_groups: int,
    sample_weight: ArrayLike | None = None,
) -> Rates:
    """Predicted and observed rate of each group of rows.

    With weights w, the observed rate of a group is `Σ w y / Σ w` and its predicted rate
    `Σ w p / Σ w`. Its Wilson interval uses the effective number of rows `(Σ w)² / Σ w²`, which is
    the number of rows if all weights are equal.

    Args:
        labels: Labels, 0 or 1, shape `(n,)`.
        probabilities: Predicted probabilities, shape `(n,)`.
        groups: Group of each row, whole numbers in [0, num_groups), shape `(n,)`.
        num_groups: Number of groups G.
        sample_weight: Weights, shape `(n,)`; None for ones.

    Returns:
        The `Rates` of the groups.

    Example:
        >>> rates = group_rates([0, 1, 1], [0.2, 0.6, 0.9], [0, 0, 1], num_groups=2)
        >>> rates.observed, rates.predicted
        (array([0.5, 1. ]), array([0.4, 0.9]))
    """
    labels, groups = np.asarray(labels, np.float64), np.asarray(groups)
    weights = np.ones_like(labels) if sample_weight is None else np.asarray(sample_weight)

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(groups, values, minlength=num_groups).astype(np.float64)

    mass = total(weights)
    # The rate of an empty group is NaN, without a division by zero.
    divisor = np.where(mass > 0.0, mass, np.nan)
    observed = total(weights * labels) / divisor
    predicted = total(weights * np.asarray(probabilities, np.float64)) / divisor
    # In units of the largest weight, no square is too small or too large.
    relative = weights / weights.max(initial=0.0) if weights.any() else weights
    squares = np.where(mass > 0.0, total(relative**2), 1.0)
    lower, upper = wilson_interval(observed, total(relative) ** 2 / squares)
    num_rows = np.bincount(groups[weights > 0.0], minlength=num_groups)
    return Rates(predicted, observed, lower, upper, num_rows)


def checked_predictions(
    labels: ArrayLike,
    predictions: ArrayLike | Mapping[str, ArrayLike],
    sample_weight: ArrayLike | None,
    from_logits: bool = False,
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]], NDArray[np.float64] | None]:
    """Labels, probabilities by name, and weights as checked float64 arrays of shape (n,).

    Rows of weight 0 hold the values of another row: see `rows_that_count`.
    """
    warn_of_other_order(labels=labels, predictions=predictions, sample_weight=sample_weight)
    flat = _flat(labels, "Labels")
    if not isinstance(predictions, Mapping):
        predictions = {"predicted": predictions}
    given = {name: _flat(values, "Predictions") for name, values in predictions.items()}
    for name, values in given.items():
        check_num_rows(name, values, flat.size)
    weights = None if sample_weight is None else _flat(sample_weight, "Weights")
    if weights is not None:
        check_num_rows("sample_weight", weights, flat.size)
        if not (weights >= 0.0).all() or not 0.0 < weights.sum() < np.inf:
            raise ValueError(
                "Argument `sample_weight` must be finite and non-negative, and not all 0. "
                f"Received: values from {weights.min()} to {weights.max()}."
            )
    numbers = rows_that_count(weights)
    if numbers is not None:
        flat, given = flat[numbers], {name: values[numbers] for name, values in given.items()}
    if flat.size == 0 or not np.isin(flat, (0.0, 1.0)).all():
        raise ValueError(
            "Argument `labels` must hold one or more labels, each 0 or 1. "
            f"Received: {flat.size} labels with the values {np.unique(flat)[:5]}. Pass the labels "
            f"first, then the predictions. {label_advice(flat)}".rstrip()
        )
    curves = {}
    for name, values in given.items():
        argument = "predictions" if name == "predicted" else f"predictions[{name!r}]"
        curves[name] = probabilities_of(values, from_logits, argument)
    return flat, curves, weights


def _flat(values: ArrayLike, what: str) -> NDArray[np.float64]:
    return numbers_of(values, what).astype(np.float64).reshape(-1)


def check_num_rows(name: str, values: NDArray[np.generic], num_rows: int) -> None:
    """Raises if an array does not have as many rows as the labels."""
    if values.size != num_rows:
        raise ValueError(
            "Arguments must have one value for each label. "
            f"Received: {values.size} values of {name!r} and {num_rows} labels."
        )
