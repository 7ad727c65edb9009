"""The curves of LabelDelay: by field value, drawn to the whole, from labels and their ages."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibration_records._warn import warn
from calibration_records.logs.late_labels.delays import (
    delay_trend,
    pooling_strength,
    product_limit,
    reverse_counts,
)
from calibration_records.logs.late_labels.log_delays import CountedLabels

# A value with fewer positives of its own has the curve of the whole.
_FEWEST_OWN = 10
# The test of drift: beyond chance, and a relative change of the reverse hazard that matters.
_DRIFT_Z, _DRIFT_CHANGE = 4.0, 0.1


def fit_curves(
    labels: CountedLabels, known: dict[str, Any], half_life: float | None
) -> dict[str, Any]:
    """What is fitted: the curves, and what is known of the labels.

    Args:
        labels: The labels, each or counted.
        known: The "horizon", whether times are "in_days", and whether the labels have a field.
        half_life: That of the weights; without one, delays that drift are warned of.
    """
    num_labels = float(labels.counts.sum())
    weights = labels.weights * (labels.weights.sum() / labels.square_weight)
    groups, own = np.zeros(len(weights), np.int64), np.zeros(0, np.int64)
    if known["has_field"]:
        is_known = np.array([value is not None for value in labels.values], bool)
        distinct, place = np.unique(labels.values[is_known], return_inverse=True)
        counts = np.bincount(place, labels.counts[is_known], minlength=len(distinct))
        own = distinct[counts >= _FEWEST_OWN]
        is_number = len(own) > 0 and isinstance(own[0], int | np.integer)
        own = own.astype(np.int64 if is_number else np.str_)
        groups = np.full(len(weights), len(own))
        groups[is_known] = value_numbers(labels.values[is_known].astype(own.dtype), own)
    fitted = {
        **known,
        "num_labels": int(num_labels),
        "values": own,
        **_curves(labels, weights, groups, len(own)),
    }
    if half_life is None:
        _warn_of_drift(labels, fitted, groups)
    return fitted


def value_numbers(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Positions of values in the sorted `own`; its length for others."""
    if not len(own):
        return np.zeros(len(values), np.int64)
    places = np.minimum(np.searchsorted(own, values), len(own) - 1)
    return np.where(own[places] == values, places, len(own))


def _curves(
    labels: CountedLabels, weights: np.ndarray, groups: np.ndarray, num_values: int
) -> dict[str, Any]:
    """Grid, shares and variances of the values' curves, and last of the whole."""
    ages, delays, grid = labels.ages, labels.delays, labels.grid
    events, at_risk = reverse_counts(delays, ages, weights, grid, groups, num_values + 1)
    all_events, all_at_risk = events.sum(axis=0), at_risk.sum(axis=0)
    # Rows of values without a curve of their own say how far values differ, too: as one more value.
    strength = pooling_strength(delays, ages, weights, groups, num_values + 1)
    # A value gets `strength` rows of the others, at most all: with these, it is in the whole.
    others = weights.sum() - np.bincount(groups, weights, minlength=num_values + 1)[:-1, None]
    factor = np.minimum(1.0, strength / np.maximum(others, 1e-300))
    events[:-1] += factor * (all_events - events[:-1])
    at_risk[:-1] += factor * (all_at_risk - at_risk[:-1])
    events[-1], at_risk[-1] = all_events, all_at_risk
    shares, log_variances = product_limit(events, at_risk)
    # Infinite only where a share is 0, of which nothing is used. JSON has no infinity.
    log_variances[~np.isfinite(log_variances)] = 0.0
    return {
        "grid": grid,
        "has_all_delays": labels.has_all_delays,
        "shares": shares,
        "log_variances": log_variances,
        "strength": strength,
    }


def _warn_of_drift(labels: CountedLabels, fitted: dict[str, Any], groups: np.ndarray) -> None:
    """Warns if delays depend on the time of the prediction, beyond chance and by much."""
    slope, z = delay_trend(
        labels.delays,
        labels.ages,
        labels.counts,
        labels.grid,
        groups,
        len(fitted["values"]) + 1,
    )
    # Of the hazard of new rows, from that of the rows at risk.
    change = slope * np.average(labels.ages, weights=labels.counts)
    if abs(z) > _DRIFT_Z and abs(change) > _DRIFT_CHANGE:
        trend, wrong = ("shorter", "high") if change > 0 else ("longer", "low")
        warn(
            f"The delays of young rows are {trend} than those of old ones (z = {abs(z):.1f}): "
            f"estimates of their positives are too {wrong}. Pass half_life=, for example "
            f"{fitted['horizon'] / 4:.2g}, so that young rows count more."
        )
