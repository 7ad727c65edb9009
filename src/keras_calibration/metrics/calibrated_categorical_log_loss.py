"""CalibratedCategoricalLogLoss: the log loss of several classes after a fitted correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Tensor
from keras_calibration.metrics.additive_metric import warns_of_nan
from keras_calibration.metrics.cross_fitted_metric import CrossFittedMetric
from keras_calibration.metrics.rows import class_rows, distribution_or_nan
from keras_calibration.ops.class_bias import (
    best_class_bias,
    class_bias_loss_sum,
    class_bias_sums,
)
from keras_calibration.ops.class_temperature import (
    NUM_TEMPERATURES,
    best_inverse_temperature,
    log_partition_sum,
    temperature_summary,
)
from keras_calibration.ops.compiled import compiled, filled_up
from keras_calibration.ops.folds import fitting_sums, scored_sums
from keras_calibration.ops.losses import SMALLEST_PROBABILITY

CLASS_CORRECTIONS = ("temperature", "class_bias")
# Largest error bound, in nats, at which a loss at class biases is still reported.
LARGEST_ERROR = 1e-3


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedCategoricalLogLoss(CrossFittedMetric):
    """Log loss of `softmax(l / T)` over K classes, where the temperature T is fitted on other rows.

    The temperature minimises the mean of `-Σ_k y_k log softmax(l / T)_k` on some of the rows; the
    result is that loss, in nats, on the others. It varies less between seeds than the log loss
    does. It cannot see an improvement of the mean confidence: report the log loss too.

    By default every row is scored with the temperature of the other folds. `bias_fraction=0.2` is
    the hold-out of the papers' image study; `num_folds=1` fits and scores on the same rows. See
    `CrossFittedMetric`.

    With `correction="temperature"`, the state holds exact label sums, and the label-free part of
    the loss with two derivatives at 49 temperatures from 1/16 to 16, between which it is
    interpolated. The mean loss has an error of about 1e-9 (at worst, when all rows have the same
    confidence, 2e-8 for 10 classes and 2e-6 for 1000). Temperatures outside [1/16, 16] are clipped;
    when every label has the largest logit, the temperature is therefore 1/16.

    With `correction="class_bias"`, a bias is added to the logit of each class, `softmax(l + c)`. No
    summary of fixed size is exact here. The state is the loss to second order in the biases: K × K
    numbers a fold (8 MB for 1000 classes) and as many products a row. The result differs from the
    log loss at `bias` by at most `error_bound`, and typically by a tenth of that. It is NaN where
    the bound is above 0.001 nats. The error grows with the biases. On 10 classes, with a model that
    is right on half of the rows:

    ================================  =================  =========  ===============
    standard deviation of the biases  error of the loss  its bound  error of a bias
    ================================  =================  =========  ===============
    0.02                              2e-6               2e-5       0.001
    0.05                              7e-6               1e-4       0.003
    0.1                               4e-5               8e-4       0.01
    0.2, second pass                  2e-6                          8e-4
    ================================  =================  =========  ===============

    For larger biases, make a second pass over the rows around the biases of the first, with
    `starting_bias=metric.bias.mean(axis=0).tolist()`.

    Both states have a fixed size and add up over batches, replicas and shards.

    The result is NaN

    - if there are no rows to fit on or to score,
    - if no correction can be fitted: the logits of every row are all equal (temperature), or a
      class has no label (biases),
    - if a logit is not finite, a probability is outside [0, 1], the probabilities or labels of a
      row do not sum to 1 within 0.03 (most often logits without `from_logits=True`), or a weight is
      negative.

    Keras passes `sample_weight` only to `weighted_metrics=` of `compile`, not to `metrics=`.

    Args:
        num_folds: Number of folds, at least 1.
        bias_fraction: Share of the rows that the correction is fitted on, in (0, 1), or None to use
            folds.
        correction: The correction to fit: `"temperature"`, or `"class_bias"`, a bias for each
            class.
        from_logits: Whether predictions are logits. Prefer logits where the model provides them: a
            probability below 1e-38 counts as 1e-38.
        num_classes: Number of classes K, at least 2. Needed only for `"class_bias"`.
        starting_bias: K biases that are added to the logits before any is fitted, or None. Only for
            `"class_bias"`.
        seed: Seed of the hash that assigns the rows.
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result. The default is float64 where the backend supports it.

    Raises:
        ValueError: If an argument is invalid, or arrays in `update_state` differ in shape.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(0, 1, (10_000, 3))
        >>> labels = np.eye(3)[np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)]
        >>> metric = CalibratedCategoricalLogLoss(from_logits=True)
        >>> metric.update_state(labels, 2 * logits)  # an overconfident model
        >>> round(float(metric.result()), 2), metric.temperature.round(1)
        (0.88, array([1.9, 2.1]))

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692.
    """

    def __init__(
        self,
        num_folds: int = 2,
        bias_fraction: float | None = None,
        correction: str = "temperature",
        from_logits: bool = False,
        num_classes: int | None = None,
        starting_bias: Sequence[float] | None = None,
        seed: int = 0,
        name: str = "calibrated_categorical_log_loss",
        dtype: str | None = None,
    ) -> None:
        super().__init__(num_folds, bias_fraction, seed, name=name, dtype=dtype)
        _check_correction(correction, num_classes, starting_bias)
        self.correction = correction
        self.from_logits = from_logits
        self.num_classes = num_classes
        self.starting_bias = None if starting_bias is None else [float(c) for c in starting_bias]
        shapes: dict[str, tuple[Any, ...]] = {
            "temperature_sums": (NUM_TEMPERATURES, 3),
            "label_sums": (2,),
        }
        if correction == "class_bias":
            shapes = {
                "loss_sums": (2,),
                "class_sums": (num_classes, 2),
                "pair_sums": (num_classes, num_classes),
            }
        self._sums = [
            self.add_sum((self.num_groups, *shape), name) for name, shape in shapes.items()
        ]

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Adds rows.

        Args:
            y_true: One-hot or soft labels, shape `(n, K)`, each row with sum 1.
            y_pred: Probabilities, or logits with `from_logits=True`, shape `(n, K)`.
            sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
        """
        labels, logits, weights = class_rows(y_true, y_pred, sample_weight, self.dtype)
        if not self.from_logits:
            logits = ops.log(ops.maximum(distribution_or_nan(logits), SMALLEST_PROBABILITY))
        logits = ops.where(ops.isfinite(logits), logits, float("nan"))
        if self.correction == "class_bias" and logits.shape[-1] != self.num_classes:
            raise ValueError(
                f"Argument `y_pred` must have shape (n, {self.num_classes}), because "
                f"num_classes={self.num_classes}. Received: shape {tuple(logits.shape)}."
            )
        if self.starting_bias is not None:
            logits = logits + ops.convert_to_tensor(self.starting_bias, self.dtype)
        group = self.next_groups(ops.shape(logits)[0])
        rows = filled_up(labels, logits, weights, group)
        summary = _compiled_summary(*rows, self.num_groups, self.correction)
        for total, values in zip(self._sums, summary, strict=True):
            total.add(values)

    @warns_of_nan
    def result(self) -> Tensor:
        """The loss of the rows since `reset_state`, a scalar in nats."""
        if self.correction == "class_bias":
            loss, error = self._loss_and_error()
            # The comparison is also False for NaN.
            return ops.where(error <= LARGEST_ERROR, loss, float("nan"))
        return self._at_best_temperature()[0]

    @property
    def temperature(self) -> np.ndarray:
        """The fitted temperature T of each scored part, in [1/16, 16], shape `(parts,)`."""
        self._check_fits("temperature")
        return 1 / ops.convert_to_numpy(self._at_best_temperature()[1])

    @property
    def bias(self) -> np.ndarray:
        """The biases of each scored part, with `starting_bias`, shape (parts, K), rows of sum 0."""
        self._check_fits("class_bias")
        bias = ops.convert_to_numpy(self._class_biases())
        starting = self.starting_bias or [0.0]
        return bias + np.subtract(starting, np.mean(starting)).astype(bias.dtype)

    @property
    def error_bound(self) -> float:
        """The largest possible distance, in nats, of the result from the log loss at `bias`."""
        self._check_fits("class_bias")
        return float(self._loss_and_error()[1])

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            **super().get_config(),
            "correction": self.correction,
            "from_logits": self.from_logits,
            "num_classes": self.num_classes,
            "starting_bias": self.starting_bias,
        }

    def _at_best_temperature(self) -> tuple[Tensor, Tensor]:
        """Mean loss at the best inverse temperatures, and these."""
        return _compiled_loss(*(total.value() for total in self._sums), self.held_out)

    def _class_biases(self) -> Tensor:
        _, *sums = (self.fitting_sums(total.value()) for total in self._sums)
        return best_class_bias(*sums)

    def _loss_and_error(self) -> tuple[Tensor, Tensor]:
        """Mean loss at the class biases and the bound on its error, in nats."""
        loss_sums, classes, pairs = (self.scored_sums(total.value()) for total in self._sums)
        losses, errors = class_bias_loss_sum(loss_sums, classes, pairs, self._class_biases())
        weight = ops.sum(loss_sums[:, 1])
        return ops.sum(losses) / weight, ops.sum(errors) / weight

    def _check_fits(self, correction: str) -> None:
        if self.correction != correction:
            raise AttributeError(
                f"This attribute exists only with correction={correction!r}. Received: "
                f"correction={self.correction!r}."
            )


def _summary(
    labels: Tensor,
    logits: Tensor,
    weights: Tensor,
    group: Tensor,
    num_groups: int,
    correction: str,
) -> tuple[Tensor, ...]:
    summarise = class_bias_sums if correction == "class_bias" else temperature_summary
    return summarise(labels, logits, weights, group, num_groups)


def _loss(sums: Tensor, label_sums: Tensor, held_out: bool) -> tuple[Tensor, Tensor]:
    fitted, labels = fitting_sums(sums, held_out), fitting_sums(label_sums, held_out)
    beta = best_inverse_temperature(fitted, labels[:, 1], labels[:, 0])
    scored, labels = scored_sums(sums, held_out), scored_sums(label_sums, held_out)
    losses = log_partition_sum(scored, beta) - beta * labels[:, 1]
    return ops.sum(losses) / ops.sum(labels[:, 0]), beta


_compiled_summary = compiled(_summary)
_compiled_loss = compiled(_loss)


def _check_correction(
    correction: str, num_classes: int | None, starting_bias: Sequence[float] | None
) -> None:
    if correction not in CLASS_CORRECTIONS:
        raise ValueError(
            f"Argument `correction` must be one of {CLASS_CORRECTIONS}. "
            f"Received: correction={correction!r}."
        )
    if correction == "temperature":
        if starting_bias is not None:
            raise ValueError(
                "Argument `starting_bias` must be None unless `correction='class_bias'`. "
                f"Received: starting_bias={starting_bias!r}."
            )
        return
    if not isinstance(num_classes, int) or num_classes < 2:
        raise ValueError(
            "Argument `num_classes` must be an integer of at least 2 with "
            f"`correction='class_bias'`. Received: num_classes={num_classes!r}."
        )
    if starting_bias is not None and not (
        np.shape(starting_bias) == (num_classes,) and np.isfinite(starting_bias).all()
    ):
        raise ValueError(
            f"Argument `starting_bias` must be {num_classes} finite numbers, one for each class. "
            f"Received: starting_bias={starting_bias!r}."
        )
