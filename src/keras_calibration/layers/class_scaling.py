"""ClassScaling: the base class of the heads that map the logits of K classes, each by its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_calibration._rows.line import Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.reference_line import class_line
from keras_calibration._solvers.softmax_fit import SoftmaxFit, mean_class_log_loss
from keras_calibration._typing import Shape
from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.logits import check_classes


class ClassScaling(Calibrator):
    """Base of `VectorScaling` and `StructuredMatrixScaling`, which serve class logits `(batch, K)`.

    A subclass implements `fit_classes`. Logits in another unit get the same probabilities, and so
    do logits plus a constant (`_solvers.reference_line.class_line`).
    """

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not (isinstance(num_classes, int) and num_classes >= 2):
            raise ValueError(
                "Argument `num_classes` must be an integer of at least 2. Received: "
                f"num_classes={num_classes!r}."
            )
        self.num_classes = num_classes

    def check_logits(self, shape: Shape) -> None:
        """Raises unless the shape is (batch, K)."""
        check_classes(shape, type(self).__name__, self.num_classes)

    def fit_rows(
        self,
        rows: Rows,
        settings: FitSettings,
        verbose: int,
    ) -> FitSummary:
        """Fits to rows that are already checked."""
        return class_fit_summary(rows, self.fit_classes(rows, class_line(rows)))

    def fit_classes(self, rows: Rows, line: Line) -> SoftmaxFit:
        """Fits to checked rows, seen through a line; assigns the weights only after success."""
        raise NotImplementedError(f"{type(self).__name__} does not define `fit_classes`.")

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {**super().get_config(), "num_classes": self.num_classes}


def class_fit_summary(rows: Rows, fit: SoftmaxFit) -> FitSummary:
    """The figures of a fit to class rows."""
    return FitSummary(
        num_rows=len(rows),
        log_loss_before=mean_class_log_loss(rows, np.ones(()), np.zeros(())),
        log_loss_after=fit.log_loss,
        num_iterations=fit.num_iterations,
        converged=fit.converged,
    )
