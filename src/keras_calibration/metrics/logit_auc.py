"""LogitAUC: the area under the ROC curve, from bins of equal width in the logit."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from calibration_records._columns import numbers_of
from calibration_records._logit_bins import RANK_BINS
from calibration_records._warn import warn
from keras_calibration._ops.histogram_auc import histogram_auc, label_histogram
from keras_calibration._rows.metric_rows import logit_rows
from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import AdditiveMetric, checked_result

# Largest share of pairs in one open bin, where they cannot be ranked.
_MOST_TIED = 1e-3
# More than a handful of distinct logits within 1/8: they share eight bins.
_HANDFUL, _NARROW = 10, 0.125


@keras.saving.register_keras_serializable(package="keras_calibration")
class LogitAUC(AdditiveMetric):
    """Area under the ROC curve, accurate also where positives are rare.

    The share of (positive, negative) pairs that the model ranks correctly, where ties count half:
    `Σ_b positives_b (Σ_{a<b} negatives_a + negatives_b / 2) / (positives · negatives)`. The sum
    runs over 4354 bins of the logit, of width 1/64 on [-16, 16), 1/16 up to ±88, and open beyond.
    `keras.metrics.AUC` has 200 thresholds at equal distances in the probability; when one row in a
    thousand is positive, nearly all of them lie above every prediction. Errors against the exact
    AUC, with 10⁶ rows and normal logits:

    =============  ================  ======  ===========  =====  ======================
    positive rate  spread of logits  AUC     this metric  Keras  Keras, 2000 thresholds
    =============  ================  ======  ===========  =====  ======================
    0.0015         1                 0.7624  8e-8         -0.16  -6e-3
    0.0011         0.5               0.6385  -6e-5        -0.14  -1e-2
    0.044          1                 0.7517  -5e-6        -8e-4  -1e-6
    0.5            2                 0.8616  -2e-7        -6e-6  -5e-7
    =============  ================  ======  ===========  =====  ======================

    The error is at most half the share of the pairs that fall into one bin. A model whose logits
    all lie within 1/64 therefore gets 1/2. An array of logits within 1/8 gives a warning.

    Soft labels within [0, 1] are allowed: they count as y of a positive and 1 - y of a negative.
    The result is NaN if there are no rows, if all labels are of one class, if a label or
    probability is outside [0, 1] (most often a logit without `from_logits=True`), if a prediction
    is NaN, if a weight is negative, or, with `from_logits=True`, if more than a thousandth of all
    pairs has both logits beyond 88 or both below -88, where they cannot be ranked. Keras passes
    `sample_weight` only to `weighted_metrics=` of `compile`.

    Args:
        from_logits: Whether predictions are logits. Prefer logits where the model provides them: a
            float32 probability near 1 has few digits left.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If arrays in `update_state` differ in length.

    Example:
        >>> metric = LogitAUC()
        >>> metric.update_state([1, 0, 1, 0], [0.004, 0.003, 0.002, 0.001])
        >>> float(metric.result())
        0.75

    Reference:
        Hanley & McNeil, *The meaning and use of the area under a receiver operating characteristic
        (ROC) curve*, Radiology 143, 1982.
    """

    # Tells `EarlyStopping(mode="auto")` that higher is better.
    _direction = "up"

    def __init__(
        self, from_logits: bool = False, name: str = "logit_auc", dtype: str | None = None
    ) -> None:
        super().__init__(name, dtype, from_logits=from_logits)
        self._histogram = self.add_sum((RANK_BINS.num_bins, 2), name="label_histogram")

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds to the sums."""
        if self.from_logits and not ops.is_tensor(y_pred):
            _warn_of_narrow(y_pred)
        labels, logits, weights = logit_rows(
            y_true, y_pred, sample_weight, self.from_logits, self.dtype
        )
        self._histogram.add(label_histogram(labels, logits, weights))

    @checked_result
    def result(self) -> Tensor:
        """The AUC of the rows since `reset_state`, a scalar in [0, 1]."""
        histogram = self._histogram.value()
        auc = histogram_auc(histogram)
        if not self.from_logits:
            return auc
        # The share of (positive, negative) pairs with both logits in the first bin, or in the last.
        ends = histogram[:: RANK_BINS.num_bins - 1] / ops.sum(histogram, axis=0)
        tied = ops.sum(ops.prod(ends, axis=-1))
        return ops.where(tied <= _MOST_TIED, auc, float("nan"))


def _warn_of_narrow(logits: Tensor) -> None:
    """Warns if an array of logits varies by less than the bins can resolve."""
    distinct = np.unique(numbers_of(logits, "y_pred"))
    if len(distinct) > _HANDFUL and distinct[-1] - distinct[0] < _NARROW:
        warn(
            f"The logits are within {distinct[-1] - distinct[0]:.3g} of each other, from "
            f"{distinct[0]:g} to {distinct[-1]:g}, which LogitAUC can hardly tell apart: it "
            "counts them in bins. Multiply all logits by one number first, so that they span "
            "several units, or pass probabilities without from_logits=True."
        )
