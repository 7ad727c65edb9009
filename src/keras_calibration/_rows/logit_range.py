"""Summarizes the distribution of base logits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_calibration._typing import Tensor


def describe_logits(logits: Tensor, rows: str, weights: np.ndarray | None = None) -> dict[str, Any]:
    """The distribution of base logits; a refresh uses it to tell logits from probabilities."""
    values = np.asarray(keras.ops.convert_to_numpy(logits), "float64")
    num_columns = values.size // max(len(values), 1)
    # All logits of a row count together as one row.
    shares = None if weights is None else np.repeat(weights / num_columns, num_columns)
    values = values.reshape(-1)
    counts = np.isfinite(values) if shares is None else np.isfinite(values) & (shares > 0)
    if not counts.any():
        return {"rows": rows, "num_rows": 0}
    values, shares = values[counts], None if shares is None else shares[counts]
    levels = (0.01, 0.1, 0.5, 0.9, 0.99)
    quantiles = np.quantile(values, levels, weights=shares, method="inverted_cdf")
    return {
        "rows": rows,
        "num_rows": round(len(values) / num_columns if shares is None else float(shares.sum())),
        "min": values.min(),
        "max": values.max(),
        "mean": np.average(values, weights=shares),
        "quantiles": dict(zip(map(str, levels), quantiles, strict=True)),
        "share_in_0_1": np.average((values >= 0) & (values <= 1), weights=shares),
    }
