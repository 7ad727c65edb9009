"""CrossFittedRows: the predictions that the figures of a `CalibrationReport` are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import special

from calibration_records._check import known
from keras_calibration._rows.rows import Rows


@dataclass(frozen=True, eq=False)
class CrossFittedRows:
    """The cross-fitted predictions of all candidates of `calibrate`, row by row.

    Each row is predicted by a fit that did not see it; for a blend, also with weights that did not
    see it. The figures of the report are computed from these rows: the log loss of a candidate is
    `Σ w loss(y, p) / Σ w`. They are sorted by `rows`. So if all rows that you passed have been
    scored once, they are in your order.

    They take 8 bytes a row for each candidate, of classes for each class, and for each of the four
    other arrays: 112 MB for a million rows and ten candidates. `model.report = None` frees them.

    Args:
        rows: Numbers of the rows among those that you passed, from 0 (m,). Rows of weight 0 are
            left out; with `time`, so is the first block, which no fit predicts. With counts, a row
            of count 3 is here three times, as its copies may be in different folds. (Above a
            million rows, the counts of equal rows are added up first, so one number stands for
            all of them, and copies have larger `weights`.)
        labels: Labels (m,), or shares of the classes (m, K), float64.
        weights: The weights with which the report averages (m,): sample weights up to a common
            factor; with `time`, times the share of the rows in the fit that predicts the row.
        folds: The fold of each row (m,), from 0. Field errors are computed within folds.
        logits: Name of each candidate that was fitted, and the chosen one → its logits (m,), or
            (m, K), float64. Near 0 and 1, they have digits that probabilities lack.

    Example:
        >>> from keras_calibration import calibrate_scores
        >>> rng = np.random.default_rng(0)
        >>> scores, sites = rng.random(3000), rng.integers(0, 5, 3000)
        >>> labels = rng.random(3000) < scores**2
        >>> report = calibrate_scores(scores, labels, methods="quick", verbose=0).report
        >>> rows = report.cross_fitted
        >>> p = rows.probabilities(report.chosen)
        >>> loss = -np.mean(np.log(np.where(labels[rows.rows], p, 1 - p)))
        >>> bool(np.isclose(loss, report.after.log_loss, rtol=1e-12))
        True
        >>> worst = max(abs(np.mean((labels[rows.rows] - p)[sites == site])) for site in range(5))
        >>> bool(worst < 0.05)
        True
    """

    rows: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    folds: np.ndarray
    logits: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, rows: Rows, folds: np.ndarray, logits: Mapping[str, np.ndarray]) -> Self:
        """These rows with their folds and logits, sorted by their numbers."""
        numbers = np.arange(len(rows)) if rows.numbers is None else rows.numbers
        order = np.argsort(numbers, kind="stable")
        return cls(
            rows=numbers[order],
            labels=rows.labels[order],
            weights=rows.row_weights[order],
            folds=folds[order],
            logits={name: values[order] for name, values in logits.items()},
        )

    def probabilities(self, name: str) -> np.ndarray:
        """The probabilities of a candidate, for classes those of each class.

        Args:
            name: Name of a candidate in the report, `"blend"` or `report.chosen` for what is used.

        Returns:
            Probabilities (m,), or of K classes (m, K), float64, in the order of `rows`.

        Raises:
            ValueError: If no candidate with this name was fitted.
        """
        known("Argument `name` must be a candidate of the report", [name], self.logits)
        logits = self.logits[name]
        return np.asarray(special.expit(logits) if logits.ndim == 1 else special.softmax(logits, 1))
