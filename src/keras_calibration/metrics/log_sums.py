"""The sums of a scored log that make up the state of a metric."""

from __future__ import annotations

from typing import NamedTuple


class LabelSums(NamedTuple):
    """Sums of weights, labels, predictions and log loss.

    Args:
        columns: Their names in `logs.query.label_sums`, in the order of the metric's sum.
    """

    columns: tuple[str, ...]


class LogitMoments(NamedTuple):
    """The moments of the logits of each group of rows.

    Args:
        num_folds: Number of folds, as for `CalibratedLogLoss`.
        bias_fraction: Share of the rows that a bias is fitted on, or None.
        seed: Seed of the hash that assigns the rows.
    """

    num_folds: int
    bias_fraction: float | None
    seed: int
