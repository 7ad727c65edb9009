"""What the calibrators of more than two classes share: class logits in, calibrated ones out."""

from typing import Any

import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import Calibrator, check_labels_given
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.solvers.class_rows import ClassRows, check_class_rows
from keras_calibration.solvers.data_checks import Rows, checked_class_logits
from keras_calibration.solvers.softmax_fit import SoftmaxFit, mean_class_log_loss


class ClassCalibrator(Calibrator):
    """Base of the layers that map class logits `(batch, K)`, K ≥ 2, to calibrated ones.

    The probabilities are `softmax` of what comes out. For a binary model's one logit a row there
    are the other calibrators; `CalibratedModel` takes only these.

    Args:
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: When called on logits of any other shape.
    """

    def call(self, logits: Any) -> Any:
        """Calibrated logits (batch, K)."""
        self.check_shape(tuple(logits.shape))
        return self.calibrate(ops.cast(logits, self.compute_dtype))

    def fit(
        self, logits: Any, labels: Any, sample_weight: Any = None, *, from_logits: bool = True
    ) -> FitSummary:
        """Fits the layer to labelled rows, directly and exactly: no optimizer, no epochs.

        Deterministic. A fit starts afresh.

        Args:
            logits: Uncalibrated logits (n, K), finite.
            labels: Class numbers (n,) or (n, 1), or one-hot or soft labels (n, K); of at least two
                classes.
            sample_weight: Weights of the rows (n,) or (n, 1), not negative; ones by default.
            from_logits: Whether `logits` holds logits; False for probabilities.

        Returns:
            The class log loss before and after, in nats a row, the number of steps, and whether
            they converged.

        Raises:
            ValueError: If a shape is wrong, there is no row, a logit is not finite, a label is no
                class number or no share of 1, all rows are of one class, or a weight is negative or
                all are 0. The layer is then as it was.

        Warns:
            UserWarning: If the logits look like probabilities.
        """
        check_labels_given(labels, type(self).__name__)
        self.check_shape(np.shape(logits))
        logits = checked_class_logits(logits, from_logits)
        return self._fit_counted(check_class_rows(logits, labels, sample_weight))

    def fit_rows(self, rows: Rows) -> FitSummary:
        """`fit` to rows that are checked already."""
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
        """The direct fit to checked rows; assigns the weights once it has succeeded."""
        raise NotImplementedError(f"{type(self).__name__} does not write `fit_classes`.")

    def check_shape(self, shape: tuple[int | None, ...]) -> None:
        """Refuses logits of any shape but (batch, K)."""
        if len(shape) != 2 or (shape[1] or 0) < 2:
            raise ValueError(
                f"{type(self).__name__} takes class logits of shape (batch, K), K of at least 2. "
                f"Received: shape {shape}. For one logit a row there are TemperatureScaling and "
                "PlattScaling."
            )
