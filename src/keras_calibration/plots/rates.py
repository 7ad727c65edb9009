"""Predicted and observed rates by group, with intervals: the mathematics of the plots."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration_records._check import integer, refused
from calibration_records._columns import check_same_rows
from keras_calibration._rows.columns import flat_array, flat_numbers
from keras_calibration._rows.scored_rows import ScoredRows
from keras_calibration._rows.weights import check_counts, check_weights_are, counted_rows
from keras_calibration._solvers.segments import distinct_values

Floats = NDArray[np.float64]
# The square of the normal quantile of a 95 % interval.
_Z_SQUARED = statistics.NormalDist().inv_cdf(0.975) ** 2


class Rates(NamedTuple):
    """Predicted and observed rate of each of G groups, arrays of shape `(G,)`.

    Args:
        predicted: Weighted mean of the predicted probabilities, float64. NaN for an empty group.
        observed: Weighted mean of the labels, float64. NaN for an empty group.
        lower: Lower end of the 95 % Wilson interval of the observed rate, float64.
        upper: Upper end of the interval.
        num_rows: Number of rows, int64: of positive weight, or as counted by the weights.
    """

    predicted: Floats
    observed: Floats
    lower: Floats
    upper: Floats
    num_rows: NDArray[np.int64]

    def interval_lengths(self) -> Floats:
        """Lengths of the interval below and above the observed rate, shape `(2, G)`."""
        # By rounding, an end of the interval may be past a rate of 0 or 1.
        return np.maximum([self.observed - self.lower, self.upper - self.observed], 0.0)


def wilson_interval(rate: ArrayLike, num_rows: ArrayLike) -> tuple[Floats, Floats]:
    """The 95 % Wilson score interval of a binomial rate.

    The ends are the two rates q that solve `(rate - q)² = z² q (1 - q) / n`:
    `(rate + z²/2n ± z sqrt(rate (1 - rate) / n + z²/4n²)) / (1 + z²/n)`, where z is the normal
    quantile of 0.975.

    Args:
        rate: Observed rates in [0, 1].
        num_rows: Numbers of rows n, or effective numbers if rows have weights. For 0 rows, the
            interval is [0, 1].

    Returns:
        Lower and upper ends, float64, of the broadcast shape.

    Example:
        >>> lower, upper = wilson_interval(0.0, 10)
        >>> print(f"{lower:.3f} {upper:.3f}")
        0.000 0.278

    Reference:
        Wilson, *Probable inference, the law of succession, and statistical inference*, JASA 1927.
    """
    # The formula multiplied by n, so that 0 rows need no special case but for their rate, NaN.
    num_rows = np.asarray(num_rows, np.float64)
    rate = np.where(num_rows > 0.0, rate, 0.5)
    centre = num_rows * rate + _Z_SQUARED / 2.0
    half_width = np.sqrt(_Z_SQUARED * (num_rows * rate * (1.0 - rate) + _Z_SQUARED / 4.0))
    lower, upper = (centre + side * half_width for side in (-1.0, 1.0))
    scale = num_rows + _Z_SQUARED
    return np.clip(lower / scale, 0.0, 1.0), np.clip(upper / scale, 0.0, 1.0)


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
        ValueError: If `num_bins` is no integer of at least 1, or the arrays hold no numbers, or
            differ in length.

    Example:
        >>> bin_by_mass([0.1, 0.9, 0.2, 0.3], 2)
        array([0, 1, 0, 1])
    """
    integer("num_bins", num_bins, 1)
    probabilities = flat_numbers(probabilities, "probabilities")
    counted_rows(sample_weight)  # raises unless they are weights
    check_same_rows(
        "Probabilities and weights",
        {"probabilities": len(probabilities)}
        | ({} if sample_weight is None else {"sample_weight": len(np.asarray(sample_weight))}),
    )
    distinct, inverse = np.unique(probabilities, return_inverse=True)
    mass = np.bincount(inverse, sample_weight, minlength=distinct.size).astype(np.float64)
    above = np.cumsum(mass)
    # The place of each distinct probability in the weight from 0 to 1, by the middle of its own
    # weight.
    middle = (above - mass / 2.0) / above[-1:]
    # Rounding would move a middle that is on an edge to either side, and a factor of the weights
    # could change the side: 1e-9 always moves it up.
    bins = np.minimum(num_bins * middle + 1e-9, num_bins - 1).astype(np.int64)
    return np.unique(bins, return_inverse=True)[1][inverse].astype(np.int64)


def group_rates(
    labels: ArrayLike,
    probabilities: ArrayLike,
    groups: ArrayLike,
    num_groups: int,
    sample_weight: ArrayLike | None = None,
    weights_are: str = "importance",
) -> Rates:
    """Predicted and observed rate of each group of rows.

    With weights w, the observed rate of a group is `Σ w y / Σ w` and its predicted rate
    `Σ w p / Σ w`. Its Wilson interval uses the effective number of rows `(Σ w)² / Σ w²`, which is
    the number of rows if all weights are equal; of counts, it uses their sum.

    Args:
        labels: Labels, 0 or 1, shape `(n,)`.
        probabilities: Predicted probabilities, shape `(n,)`.
        groups: Group of each row, whole numbers in [0, num_groups), shape `(n,)`.
        num_groups: Number of groups G.
        sample_weight: Weights, shape `(n,)`; None for ones.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows.

    Returns:
        The `Rates` of the groups.

    Example:
        >>> rates = group_rates([0, 1, 1], [0.2, 0.6, 0.9], [0, 0, 1], num_groups=2)
        >>> rates.observed, rates.predicted
        (array([0.5, 1. ]), array([0.4, 0.9]))
    """
    integer("num_groups", num_groups, 0)
    labels = flat_numbers(labels, "labels")
    probabilities = flat_numbers(probabilities, "probabilities")
    groups = flat_array(np.asarray(groups), "groups")
    if groups.dtype.kind not in "iu" or not ((groups >= 0) & (groups < num_groups)).all():
        raise refused("groups", f"whole numbers from 0 to {num_groups - 1}", groups)
    weights = (
        np.ones_like(labels)
        if sample_weight is None
        else flat_numbers(sample_weight, "sample_weight")
    )
    check_same_rows(
        "Labels, probabilities, groups and weights",
        {
            "labels": len(labels),
            "probabilities": len(probabilities),
            "groups": len(groups),
            "sample_weight": len(weights),
        },
    )
    is_counted = weights_are == "counts"
    check_weights_are(weights_are, sample_weight is not None)
    if is_counted:
        check_counts(weights)

    def total(values: Floats) -> Floats:
        return np.bincount(groups, values, num_groups).astype(np.float64)

    mass = total(weights)
    # The rate of an empty group is NaN, without a division by zero.
    divisor = np.where(mass > 0.0, mass, np.nan)
    observed = total(weights * labels) / divisor
    # In units of the largest weight, no square is too small or too large.
    relative = weights / weights.max(initial=0.0) if weights.any() else weights
    squares = np.where(mass > 0.0, total(relative**2), 1.0)
    num_rows = mass if is_counted else np.bincount(groups[weights > 0.0], minlength=num_groups)
    num_effective = mass if is_counted else total(relative) ** 2 / squares
    lower, upper = wilson_interval(observed, num_effective)
    return Rates(
        total(weights * probabilities) / divisor,
        observed,
        lower,
        upper,
        np.rint(num_rows).astype(np.int64),
    )


def rates_by_bin(
    rows: ScoredRows, num_bins: int = 15, weights_are: str = "importance"
) -> dict[str, Rates]:
    """Name of the probabilities → their rates by bins of equal mass."""
    curves = {}
    for name, p in rows.predictions.items():
        bins = bin_by_mass(p, num_bins, rows.weights)
        curves[name] = group_rates(
            rows.labels, p, bins, int(bins.max()) + 1, rows.counted.weights, weights_are
        )
    return curves


def rates_by_value(
    rows: ScoredRows,
    field: str,
    num_values_shown: int = 12,
    weights_are: str = "importance",
) -> tuple[tuple[str, ...], dict[str, Rates]]:
    """Names of a field's most frequent values, and their rates by the name of the probabilities."""
    names, groups = distinct_values(rows.columns[field].reshape(-1))
    rates = {
        name: group_rates(rows.labels, p, groups, len(names), rows.counted.weights, weights_are)
        for name, p in rows.predictions.items()
    }
    num_rows = next(iter(rates.values())).num_rows
    shown = np.argsort(-num_rows, kind="stable")[:num_values_shown]
    curves = {name: Rates._make(a[shown] for a in every) for name, every in rates.items()}
    return tuple(names[value] for value in shown), curves
