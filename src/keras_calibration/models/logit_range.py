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
    weights = np.ones(num_rows) if weights is None else np.asarray(weights)
    # All logits of a row count together as one row.
    weights = np.repeat(weights, values.size // max(num_rows, 1)) * num_rows / max(values.size, 1)
    values = values.reshape(-1)
    counts = np.isfinite(values) & (weights > 0)
    values, weights = values[counts], weights[counts]
    if not len(values):
        return {"rows": rows, "num_rows": 0}
    levels = (0.01, 0.1, 0.5, 0.9, 0.99)
    quantiles = np.quantile(values, levels, weights=weights, method="inverted_cdf")
    return {
        "rows": rows,
        "num_rows": round(float(weights.sum())),
        "min": values.min(),
        "max": values.max(),
        "mean": np.average(values, weights=weights),
        "quantiles": dict(zip(map(str, levels), quantiles, strict=True)),
        "share_in_0_1": np.average((values >= 0) & (values <= 1), weights=weights),
    }
