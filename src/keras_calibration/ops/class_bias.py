"""A fixed-size, mergeable summary of class logits that gives the log loss at small class biases.

The log loss of `softmax(l + c)`, with a bias c for each of K classes, is
`log Σ_k exp(l_k + c_k) - l_y - c_y`. The label part is exact in `Σ w y`. The other part,
`F(c) = Σ w log Σ_k exp(l_k + c_k)`, has no exact summary of fixed size, unlike that of one bias or
temperature. It is kept to second order about c = 0; with p = softmax(l),

`F(c) ≈ F(0) + Σ w p·c + ½ V`, `V = Σ w Var_p(c) = ½ Σ_ij (Σ w p_i p_j) (c_i - c_j)²`.

The summary also gives a bound on the error. Along s c, with s from 0 to 1, the third derivative is
the sum of the third central moments of c under the probabilities at s. Each of them is at most the
variance times the range `R = max c - min c`, so the variances grow at most like `exp(R s)`. The
remainder is therefore at most `∫ ½ (1 - s)² R V exp(R s) ds`, and at most `V R (3 + exp R) / 24`,
because the exponential lies below its chord. This is about R V / 6.

A summary is three tensors, of shapes (..., 2), (..., K, 2) and (..., K, K). Summaries add up over
batches, replicas and shards.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_calibration._typing import Tensor


def class_bias_sums(
    labels: Tensor, logits: Tensor, weights: Tensor, group: Tensor, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Summary of each group: losses and weights (g, 2), classes (g, K, 2), pairs (g, K, K).

    The columns are `Σ w loss` of `softmax(l)` and `Σ w`; `Σ w p_k` and `Σ w y_k`; `Σ w p_i p_j`, 0
    on the diagonal, which is not needed. A logit that is not a number makes all groups NaN.
    """
    log_probabilities = ops.log_softmax(logits, axis=-1)
    probabilities = ops.exp(log_probabilities)
    losses = -ops.sum(labels * log_probabilities, axis=-1)
    # Labels that do not sum to exactly 1 count by their sum, as in Keras' own loss.
    probability_weights = weights * ops.sum(labels, axis=-1)
    one_hot = ops.one_hot(group, num_groups, axis=0, dtype=probabilities.dtype)
    loss_sums = ops.matmul(one_hot, ops.stack([weights * losses, weights], axis=1))
    class_values = (probability_weights[:, None] * probabilities, weights[:, None] * labels)
    class_sums = ops.stack([ops.matmul(one_hot, values) for values in class_values], axis=-1)
    pair_sums = ops.stack(
        [
            ops.matmul(ops.transpose(in_group[:, None] * class_values[0]), probabilities)
            for in_group in ops.unstack(one_hot, num_groups)
        ]
    )
    num_classes = probabilities.shape[-1]
    return loss_sums, class_sums, pair_sums * (1 - ops.eye(num_classes, dtype=pair_sums.dtype))


def best_class_bias(class_sums: Tensor, pair_sums: Tensor) -> Tensor:
    """The biases (g, K) that minimise the log loss of `softmax(l + c)` to second order.

    They solve `H c = Σ w (y - p)`, where H is the Hessian of F. Each row has sum 0, because a
    constant added to all biases changes nothing. NaN where a class has no label, so that no finite
    bias exists, or where all probabilities are 0 or 1.
    """
    num_classes = pair_sums.shape[-1]
    dtype = keras.backend.standardize_dtype(pair_sums.dtype)
    gradient = class_sums[..., 0] - class_sums[..., 1]
    # Row sums for the diagonal, Σ w p_i (1 - p_i), without the cancellation of 1 - p_i.
    diagonal = ops.sum(pair_sums, axis=-1)
    scale = ops.mean(diagonal, axis=-1)
    solvable = ops.logical_and(ops.all(class_sums[..., 1] > 0, axis=-1), scale > 0)
    solvable = ops.logical_and(solvable, ops.isfinite(scale + ops.sum(gradient, axis=-1)))
    identity = ops.eye(num_classes, dtype=dtype)
    # H is singular along equal biases, which the first term mends. It is nearly singular for
    # classes of almost no probability: the last term keeps their biases finite, though useless.
    regular = 1 / num_classes + (1e-12 if dtype == "float64" else 1e-6) * identity
    hessian = diagonal[..., None] * identity - pair_sums + scale[:, None, None] * regular
    # A singular matrix would raise an error and stop the training step.
    hessian = ops.where(solvable[:, None, None], hessian, identity)
    bias = -ops.solve(hessian, ops.where(solvable[:, None], gradient, 0.0)[..., None])[..., 0]
    bias = bias - ops.mean(bias, axis=-1, keepdims=True)
    return ops.where(solvable[:, None], bias, float("nan"))


def class_bias_loss_sum(
    loss_sums: Tensor, class_sums: Tensor, pair_sums: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """`Σ w loss` of `softmax(l + c)` to second order in c, and a bound on its error, both (g,)."""
    first_order = ops.sum((class_sums[..., 0] - class_sums[..., 1]) * bias, axis=-1)
    # (c_i - c_j)² rather than cᵀ H c: a sum of positive terms.
    differences = bias[:, :, None] - bias[:, None, :]
    variance = 0.5 * ops.sum(pair_sums * ops.square(differences), axis=(-2, -1))
    spread = ops.max(bias, axis=-1) - ops.min(bias, axis=-1)
    error = variance * spread * (3 + ops.exp(spread)) / 24
    return loss_sums[..., 0] + first_order + 0.5 * variance, error
