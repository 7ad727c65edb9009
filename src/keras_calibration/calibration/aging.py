"""Aging: what it costs to predict with a calibration that was fitted some time ago."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.calibration.splits import Splits
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses, head_logits


@dataclass(frozen=True)
class Aging:
    """How the log loss rises with the age of a fit, from chronological folds.

    The rows of each block are predicted by the newest fit to rows before it, and by the fits that
    are one, two, three … blocks older.

    Args:
        candidate: Name of the candidate whose fits these are.
        ages: Mean times from the last row of the older fit to the rows that it predicts, in the
            unit of the times.
        changes: Log loss of the older fit minus that of the newest, on the same rows.
        errors: Standard errors of these, with blocks as independent.

    Example:
        >>> aging = Aging("ilps+level", (1.5, 2.5), (0.0004, 0.0011), (0.0003, 0.0005))
        >>> aging.changes[-1]
        0.0011
    """

    candidate: str
    ages: tuple[float, ...]
    changes: tuple[float, ...]
    errors: tuple[float, ...]


def aging_of(name: str, heads: Sequence[Head], rows: Rows, splits: Splits) -> Aging | None:
    """The aging of a candidate; None where there are fewer than two differences of an age.

    Args:
        name: Name of the candidate.
        heads: Its fits, in the order of the splits.
        rows: All rows, with their times.
        splits: Chronological splits.
    """
    parts, times = list(splits.parts()), np.asarray(rows.times)
    ends = [times[fitted].max() for fitted, _ in parts]
    losses = {}
    for number, (_, scored) in enumerate(parts):
        own = rows.take(scored)
        for fit in range(number + 1):
            logits = head_logits(heads[fit], own.logits, own.features)
            losses[fit, number] = head_log_losses(own.labels, logits)
    found = []
    for steps in range(1, len(parts) - 1):
        pairs = [(number - steps, number) for number in range(steps, len(parts))]
        numbers = np.concatenate([parts[number][1] for _, number in pairs])
        block = np.concatenate([np.full(len(parts[number][1]), number) for _, number in pairs])
        change = np.concatenate([losses[pair] - losses[pair[1], pair[1]] for pair in pairs])
        passed = [times[parts[number][1]] - ends[fit] for fit, number in pairs]
        weights = rows.row_weights[numbers]
        age = float(np.average(np.concatenate(passed), weights=weights))
        found.append((age, *mean_and_error(change, weights, block)))
    if not found:
        return None
    ages, changes, errors = zip(*found, strict=True)
    return Aging(name, ages, changes, errors)
