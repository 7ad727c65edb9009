"""CalibratedLogLoss: the log loss after its bias has been corrected on other rows."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.metrics.additive_metric import warns_of_nan
from keras_calibration.metrics.cross_fitted_metric import CrossFittedMetric
from keras_calibration.metrics.rows import aligned_rows, rows_or_nan
from keras_calibration.ops.affine_correction import CORRECTIONS, cross_fitted_loss
from keras_calibration.ops.compiled import compiled, filled_up
from keras_calibration.ops.folds import row_groups
from keras_calibration.ops.logit_moments import NUM_BINS, NUM_COLUMNS, by_group, logit_moments
from keras_calibration.ops.losses import logits_from_probabilities


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedLogLoss(CrossFittedMetric):
    """Log loss of `σ(l + c)`, with the bias c fitted on other rows.

    Training moves the mean prediction of a model up and down by chance, from seed to seed, and the
    log loss with it. The Calibrated Log Loss finds the bias `c = argmin_c Σ log loss(y, σ(l + c))`
    on some rows, where `Σ σ(l + c) = Σ y`, and reports the mean log loss of `σ(l + c)` on others.
    It varies less between seeds, so that it finds the better of two pipelines more often. By
    construction it does not see a pipeline that improves the mean prediction: look at the log loss
    too.

    Three ways to share out the rows:

    - `num_folds=2` (default): cross-fitted. Every row is scored, with the bias of the other folds.
    - `bias_fraction=0.1`: the papers' hold-out. The bias comes from that share of the rows, the
      loss from the rest. It has more variance.
    - `num_folds=1`: in-sample. Bias and loss come from all rows; never above the log loss.

    Rows go to folds by a hash of their running number since `reset_state`, so that the result does
    not depend on the batch size, nor on a periodic order.

    The state is of a fixed size, 27 kB a fold: moments of the logits in 418 bins and exact label
    sums, in float64 where the backend has it. It adds up over batches, replicas and shards. The
    loss is right to 1e-6 of itself for logits up to ±88 (in float32 to some 1e-5), to 1e-9 within
    ±16; `ops/logit_moments.py` says how. The result is NaN where it cannot be told: no rows, labels
    of one class only among the rows of a bias, a correction that moves logits from beyond ±88 near
    0, a label outside [0, 1], a prediction that is NaN or infinite, a negative weight, or
    probabilities outside [0, 1] (most often logits without `from_logits=True`). Labels within
    [0, 1] may be soft.

    Keras hands `sample_weight` only to `weighted_metrics=` of `compile`, not to `metrics=`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the bias is fitted on, in (0, 1); None for folds.
        correction: What is corrected: `"bias"`, σ(l + c); `"temperature"`, σ(a l); or `"platt"`,
            σ(a l + c), for pipelines whose slope moves with the seed. A scale a
            beyond 4 to 5 is NaN (beyond ±16, half of that): logits so close together (of an
            untrained model, say) are too close for the bins.
        from_logits: Whether predictions are logits. A probability rounded to 1 has lost its logit:
            prefer logits where the model gives them.
        seed: Seed of the hash that shares out the rows.
        name: Name of the metric and key of the logs.
        dtype: Dtype of the state and the result; float64 by default where the backend has it.

    Raises:
        ValueError: If an argument is out of its range, or rows do not align in `update_state`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(-2, 1, 10_000)
        >>> labels = rng.random(10_000) < 1 / (1 + np.exp(-logits))
        >>> metric = CalibratedLogLoss(from_logits=True)
        >>> metric.update_state(labels, logits + 0.5)  # a model that predicts too much
        >>> round(float(metric.result()), 4), metric.bias.round(1)
        (0.3719, array([-0.6, -0.5]))

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        correction: str = "bias",
        from_logits: bool = False,
        seed: int = 0,
        name: str = "calibrated_log_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_folds, bias_fraction, seed, name=name, dtype=dtype)
        if correction not in CORRECTIONS:
            raise ValueError(
                f"Argument `correction` must be one of {CORRECTIONS}. "
                f"Received: correction={correction!r}."
            )
        self.correction = correction
        self.from_logits = from_logits
        self._moments = self.add_sum((self.num_groups * NUM_BINS, NUM_COLUMNS), name="moments")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds rows.

        Args:
            y_true: Labels in [0, 1] (n,) or (n, 1).
            y_pred: Probabilities, or logits with `from_logits=True` (n,) or (n, 1).
            sample_weight: Weights, not negative (n,) or (n, 1), or None.
        """
        rows = aligned_rows(y_true, y_pred, sample_weight)
        first_row = self.count_rows(ops.shape(rows[0])[0])
        sharing = (self.num_folds, self.bias_fraction, self.seed)
        self._moments.add(
            _compiled_moments(*filled_up(*rows), first_row, self.from_logits, sharing, self.dtype)
        )

    @warns_of_nan
    def result(self) -> Any:
        """The Calibrated Log Loss of all rows since `reset_state`, a scalar in nats."""
        return self._scored()[0]

    @property
    def bias(self) -> np.ndarray:
        """The fitted bias c of each scored part, added to the (scaled) logit: (parts,)."""
        return ops.convert_to_numpy(self._scored()[2])

    @property
    def scale(self) -> np.ndarray:
        """The fitted scale a of each scored part, the inverse temperature: (parts,)."""
        return ops.convert_to_numpy(self._scored()[1])

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            **super().get_config(),
            "correction": self.correction,
            "from_logits": self.from_logits,
        }

    def _scored(self) -> tuple[Any, Any, Any]:
        return _compiled_loss(self._moments.value(), self.held_out, self.correction)


def _moments(
    labels: Any,
    predictions: Any,
    weights: Any,
    first_row: Any,
    from_logits: bool,
    sharing: tuple[int, float | None, int],
    dtype: str,
) -> Any:
    # In the precision of the probabilities themselves, float32 at least.
    logits = predictions if from_logits else logits_from_probabilities(predictions)
    labels, logits, weights = rows_or_nan(labels, logits, weights, dtype)
    row_number = first_row + ops.arange(ops.shape(labels)[0], dtype="int32")
    num_folds, bias_fraction, _ = sharing
    num_groups = num_folds if bias_fraction is None else 2
    return logit_moments(labels, logits, weights, row_groups(row_number, *sharing), num_groups)


def _loss(moments: Any, held_out: bool, correction: str) -> tuple[Any, Any, Any]:
    return cross_fitted_loss(by_group(moments), held_out, correction)


_compiled_moments = compiled(_moments)
_compiled_loss = compiled(_loss)
