"""Summarizes the distribution of base logits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_calibration._typing import Tensor


def describe_logits(logits: Tensor, rows: str, weights: np.ndarray | None = None) -> dict[str, Any]:
    """The distribution of base logits; a refresh uses it to tell logits from probabilities."""
    values = np.asarray(keras.ops.convert_to_numpy(logits), "float64")
    num_rows = len(values)
    # All logits of a row count together as one row.
    share = num_rows / max(values.size, 1)
    if weights is not None:
        weights = np.repeat(weights, values.size // max(num_rows, 1)) * share
    values = values.reshape(-1)
    counts = np.isfinite(values) if weights is None else np.isfinite(values) & (weights > 0)
    if not counts.any():
        return {"rows": rows, "num_rows": 0}
    if not counts.all():
        values, weights = values[counts], None if weights is None else weights[counts]
    levels = (0.01, 0.1, 0.5, 0.9, 0.99)
    quantiles = np.quantile(values, levels, weights=weights, method="inverted_cdf")
    return {
        "rows": rows,
        "num_rows": round(share * len(values) if weights is None else float(weights.sum())),
        "min": values.min(),
        "max": values.max(),
        "mean": np.average(values, weights=weights),
        "quantiles": dict(zip(map(str, levels), quantiles, strict=True)),
        "share_in_0_1": np.average((values >= 0) & (values <= 1), weights=weights),
    }
