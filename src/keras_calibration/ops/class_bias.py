"""A fixed-size, mergeable summary of class logits that gives the log loss at small class biases.

The log loss of `softmax(l + c)`, c a bias for each of K classes, is
`log Σ_k exp(l_k + c_k) - l_y - c_y`. The label part is exact in `Σ w y`. The other,
`F(c) = Σ w log Σ_k exp(l_k + c_k)`, has no exact summary of fixed size, unlike that of one bias or
temperature; it is kept to second order about c = 0: with p = softmax(l),

`F(c) ≈ F(0) + Σ w p·c + ½ V`, `V = Σ w Var_p(c) = ½ Σ_ij (Σ w p_i p_j) (c_i - c_j)²`.

How wrong that is can be told from the summary itself. Along s c, s from 0 to 1, the third
derivative is the sum of third central moments of c under the probabilities at s, each at most the
variance times the range `R = max c - min c`. So the variances grow at most like `exp(R s)`, and the
remainder is at most `∫ ½ (1 - s)² R V exp(R s) ds`, which is at most `V R (3 + exp R) / 24` as the
exponential is below its chord. It is about R V / 6.

A summary is three tensors, (..., 2), (..., K, 2) and (..., K, K); summaries add up over batches,
replicas and shards.
"""

from typing import Any

import keras
from keras import ops


def class_bias_sums(
    labels: Any, logits: Any, weights: Any, group: Any, num_groups: int
) -> tuple[Any, Any, Any]:
    """The summary of each group.

    Args:
        labels: One-hot or soft labels y (n, K), float.
        logits: Logits (n, K), of the same dtype. One that is not a number makes all groups NaN.
        weights: Weights (n,), of the same dtype, not negative.
        group: The group of each row (n,), int32 in [0, num_groups).
        num_groups: Number of groups.

    Returns:
        `Σ w loss` of `softmax(l)` and `Σ w` (num_groups, 2); `Σ w p_k` and `Σ w y_k`
        (num_groups, K, 2); `Σ w p_i p_j` (num_groups, K, K), 0 on the diagonal, which nothing
        needs.

    Example:
        >>> labels, logits = ops.array([[1.0, 0.0]]), ops.zeros((1, 2))
        >>> loss, classes, pairs = class_bias_sums(labels, logits, ops.ones(1), [0], 1)
        >>> print(classes[0].numpy(), pairs[0].numpy())
        [[0.5 1. ]
         [0.5 0. ]] [[0.   0.25]
         [0.25 0.  ]]
    """
    log_probabilities = ops.log_softmax(logits, axis=-1)
    probabilities = ops.exp(log_probabilities)
    losses = -ops.sum(labels * log_probabilities, axis=-1)
    # Labels that sum to 1 only nearly count as often as they say, as in Keras' own loss.
    probability_weights = weights * ops.sum(labels, axis=-1)
    one_hot = ops.one_hot(group, num_groups, axis=0, dtype=probabilities.dtype)
    loss_sums = ops.matmul(one_hot, ops.stack([weights * losses, weights], axis=1))
    of_classes = (probability_weights[:, None] * probabilities, weights[:, None] * labels)
    class_sums = ops.stack([ops.matmul(one_hot, values) for values in of_classes], axis=-1)
    pair_sums = ops.stack(
        [
            ops.matmul(ops.transpose(in_group[:, None] * of_classes[0]), probabilities)
            for in_group in ops.unstack(one_hot, num_groups)
        ]
    )
    num_classes = probabilities.shape[-1]
    return loss_sums, class_sums, pair_sums * (1 - ops.eye(num_classes, dtype=pair_sums.dtype))


def best_class_bias(class_sums: Any, pair_sums: Any) -> Any:
    """The biases at which the log loss of `softmax(l + c)`, to second order, is least.

    They solve `H c = Σ w (y - p)`, H the Hessian of F.

    Args:
        class_sums: `Σ w p_k` and `Σ w y_k` (g, K, 2).
        pair_sums: `Σ w p_i p_j` of the same rows (g, K, K), 0 on the diagonal.

    Returns:
        Biases (g, K), each row of sum 0, as a constant added to all changes nothing. NaN where a
        class has no label, for then no finite bias exists, or where all probabilities are 0 or 1.

    Example:
        >>> labels, logits = ops.array([[1.0, 0.0], [0.0, 1.0]]), ops.array([[0.1, 0.0]] * 2)
        >>> _, *sums = class_bias_sums(labels, logits, ops.ones(2), [0, 0], 1)
        >>> print(best_class_bias(*sums).numpy().round(3))
        [[-0.05  0.05]]
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
    # H is 0 along equal biases, where any other number does; and nearly 0 for classes of almost no
    # probability, whose biases the last term keeps finite, if far too large to be used.
    regular = 1 / num_classes + (1e-12 if dtype == "float64" else 1e-6) * identity
    hessian = diagonal[..., None] * identity - pair_sums + scale[:, None, None] * regular
    # A singular matrix is an error that would stop a training step.
    hessian = ops.where(solvable[:, None, None], hessian, identity)
    bias = -ops.solve(hessian, ops.where(solvable[:, None], gradient, 0.0)[..., None])[..., 0]
    bias = bias - ops.mean(bias, axis=-1, keepdims=True)
    return ops.where(solvable[:, None], bias, float("nan"))


def class_bias_loss_sum(
    loss_sums: Any, class_sums: Any, pair_sums: Any, bias: Any
) -> tuple[Any, Any]:
    """`Σ w loss` of `softmax(l + c)` to second order in c, and how wrong that can be.

    Args:
        loss_sums: `Σ w loss` of `softmax(l)` and `Σ w` (g, 2).
        class_sums: `Σ w p_k` and `Σ w y_k` of the same rows (g, K, 2).
        pair_sums: `Σ w p_i p_j` of the same rows (g, K, K), 0 on the diagonal.
        bias: Biases c (g, K).

    Returns:
        Sums (g,), and the most by which each can differ from the exact one (g,).

    Example:
        >>> labels, logits = ops.array([[1.0, 0.0]]), ops.zeros((1, 2))
        >>> sums = class_bias_sums(labels, logits, ops.ones(1), [0], 1)
        >>> loss, error = class_bias_loss_sum(*sums, ops.array([[0.1, -0.1]]))
        >>> round(float(error[0]), 6)
        0.000352
    """
    first_order = ops.sum((class_sums[..., 0] - class_sums[..., 1]) * bias, axis=-1)
    # (c_i - c_j)² rather than cᵀ H c: a sum of positive terms.
    differences = bias[:, :, None] - bias[:, None, :]
    variance = 0.5 * ops.sum(pair_sums * ops.square(differences), axis=(-2, -1))
    spread = ops.max(bias, axis=-1) - ops.min(bias, axis=-1)
    error = variance * spread * (3 + ops.exp(spread)) / 24
    return loss_sums[..., 0] + first_order + 0.5 * variance, error
