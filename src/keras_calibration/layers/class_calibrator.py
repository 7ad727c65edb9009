"""ClassCalibrator: the base class of the calibrators of multiclass logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.calibrator import Calibrator, check_labels_given
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.solvers.class_rows import (
    ClassRows,
    check_class_rows,
    warn_of_absent_classes,
)
from keras_calibration.solvers.data_checks import Rows, checked_class_logits
from keras_calibration.solvers.softmax_fit import SoftmaxFit, mean_class_log_loss


class ClassCalibrator(Calibrator):
    """Base of the layers that map class logits `(batch, K)`, K ≥ 2, to calibrated ones.

    The calibrated probabilities are the softmax of the output. For binary models with one logit
    per row, use the other calibrators.

    Args:
        num_classes: Number of classes K, at least 2; None if no weight depends on it.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If `num_classes` is out of its range, or the layer is called on logits of any
            other shape.
    """

    def __init__(self, num_classes: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_classes is not None and not (isinstance(num_classes, int) and num_classes >= 2):
            raise ValueError(
                "Argument `num_classes` must be an integer of at least 2. Received: "
                f"num_classes={num_classes!r}."
            )
        self.num_classes = num_classes

    def call(self, logits: Tensor) -> Tensor:
        """Calibrated logits (batch, K)."""
        self.check_shape(tuple(logits.shape))
        return self.calibrate(ops.cast(logits, self.compute_dtype))

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        from_logits: bool = True,
    ) -> FitSummary:
        """Fits the layer to labelled rows, directly and exactly: no optimizer, no epochs.

        The fit is deterministic and replaces any earlier one.

        Args:
            logits: Uncalibrated logits (n, K), finite.
            labels: Class numbers (n,) or (n, 1), or one-hot or soft labels (n, K). At least two
                classes must occur.
            sample_weight: Sample weights (n,) or (n, 1), not negative; ones by default.
            from_logits: Whether `logits` holds logits; False for probabilities.

        Returns:
            A `FitSummary`: class log loss before and after in nats per row, number of steps,
            convergence.

        Raises:
            ValueError: If a shape is wrong, there is no row, a logit is not finite, a label is not
                a class number, soft labels do not sum to 1, all rows are of one class, a weight is
                negative, or all weights are 0. The layer is then unchanged.

        Warns:
            UserWarning: If the logits look like probabilities; if a class has no rows. The rows say
                nothing about such a class: it is scaled by the temperature of the others, and keeps
                the mean probability that this gives it.
        """
        check_labels_given(labels, type(self).__name__)
        self.check_shape(np.shape(logits))
        logits = checked_class_logits(logits, from_logits)
        rows = check_class_rows(logits, labels, sample_weight)
        warn_of_absent_classes(Rows(rows.logits, rows.labels, rows.weights))
        return self._fit_counted(rows)

    def fit_rows(self, rows: Rows) -> FitSummary:
        """Fits to rows that are already checked."""
        return self._fit_counted(check_class_rows(rows.logits, rows.labels, rows.weights))

    def _fit_counted(self, rows: ClassRows) -> FitSummary:
        self.ensure_built()
        fit = self.fit_classes(rows)
        return FitSummary(
            num_rows=rows.num_rows,
            log_loss_before=mean_class_log_loss(rows, np.ones(()), np.zeros(())),
            log_loss_after=fit.log_loss,
            num_iterations=fit.num_iterations,
            converged=fit.converged,
        )

    def fit_classes(self, rows: ClassRows) -> SoftmaxFit:
        """Fits to checked rows; assigns the weights only after the fit has succeeded."""
        raise NotImplementedError(f"{type(self).__name__} does not define `fit_classes`.")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """The shape of the input; raises for other logits."""
        self.check_shape(tuple(input_shape))
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        of_size = {} if self.num_classes is None else {"num_classes": self.num_classes}
        return {**super().get_config(), **of_size}

    def check_shape(self, shape: tuple[int | None, ...]) -> None:
        """Raises unless the shape is (batch, K), with K = `num_classes` if that is given."""
        if len(shape) != 2 or (shape[1] or 0) < 2:
            raise ValueError(
                f"The class logits of {type(self).__name__} must have shape (batch, K) with K of "
                f"at least 2. Received: shape {shape}. For one logit per row, use "
                "TemperatureScaling or PlattScaling."
            )
        if self.num_classes not in (None, shape[1]):
            raise ValueError(
                f"The class logits of {type(self).__name__}(num_classes={self.num_classes}) must "
                f"have shape (batch, {self.num_classes}). Received: shape {shape}. Pass one logit "
                "per class."
            )
