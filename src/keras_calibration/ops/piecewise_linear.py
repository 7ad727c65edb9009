"""Piecewise-linear curves on knots: evaluation, slopes, penalties and the hat basis.

Everything here is a plain function on tensors, in `keras.ops`, and compiles under XLA.
"""

from typing import Any

from keras import ops


def piecewise_linear(logits: Any, knots: Any, values: Any, extrapolation: str = "linear") -> Any:
    """Evaluates the piecewise-linear curve through the points `(a_k, b_k)`.

    Between knots, `η(l) = b_k + (l - a_k) (b_{k+1} - b_k) / (a_{k+1} - a_k)`. Outside them the end
    segments go on (`"linear"`), or the curve stays at its end values (`"constant"`). NaN gives NaN.
    Values that do not fall give a curve that does not fall, to the last bit: rounding included.

    The gradient with respect to `values` is dense (not `IndexedSlices`): Keras' Adam, RMSprop and
    Adagrad take a wrong second moment from sparse gradients with repeated indices.

    Args:
        logits: Float tensor of any shape.
        knots: Increasing knots a (K,), K ≥ 2, of the same dtype.
        values: Values b at the knots (K,), of the same dtype.
        extrapolation: `"linear"` or `"constant"`.

    Returns:
        A tensor of the shape and dtype of `logits`.

    Example:
        >>> print(piecewise_linear([-1.0, 0.5, 3.0], [0.0, 1.0], [0.0, 2.0]).numpy())
        [-2.  1.  6.]

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 10 ("linear") and eq. 9 ("constant").
    """
    logits, knots, values = (ops.convert_to_tensor(tensor) for tensor in (logits, knots, values))
    if extrapolation == "constant":
        # The comparison keeps NaN, which a clip may turn into an end of the range.
        inside = ops.clip(logits, knots[0], knots[-1])
        logits = ops.where(ops.isnan(logits), logits, inside)
    segment = _segment(logits, knots)
    # `take` without an axis flattens first, which is what makes the gradient dense.
    left, right = ops.take(knots, segment), ops.take(knots, segment + 1)
    left_value, right_value = ops.take(values, segment), ops.take(values, segment + 1)
    fraction = (logits - left) / (right - left)
    curve = left_value + fraction * (right_value - left_value)
    # Rounding may carry a segment just past its ends, below or above its neighbours.
    inside = ops.logical_and(fraction >= 0, fraction <= 1)
    lower, upper = ops.minimum(left_value, right_value), ops.maximum(left_value, right_value)
    curve = ops.where(ops.logical_and(inside, curve < lower), lower, curve)
    return ops.where(ops.logical_and(inside, curve > upper), upper, curve)


def _segment(logits: Any, knots: Any) -> Any:
    """Index k of the segment `[a_k, a_{k+1})` of each logit; the end segments are open."""
    right_of = ops.searchsorted(knots, ops.reshape(logits, (-1,)), side="right")
    segment = ops.clip(right_of - 1, 0, knots.shape[0] - 2)
    return ops.reshape(segment, ops.shape(logits))


def slopes(knots: Any, values: Any) -> Any:
    """Slope of each segment: `(b_{k+1} - b_k) / (a_{k+1} - a_k)`.

    Args:
        knots: Increasing knots a (K,).
        values: Values b (K,).

    Returns:
        K - 1 slopes.

    Example:
        >>> print(slopes(ops.array([0.0, 1.0, 3.0]), ops.array([0.0, 2.0, 2.0])).numpy())
        [2. 0.]
    """
    return (values[1:] - values[:-1]) / (knots[1:] - knots[:-1])


def decrease_penalty(values: Any) -> Any:
    """How much a sequence falls: `Σ_k (b_k - b_{k+1})₊`, 0 where it never does.

    Args:
        values: Values b at the knots (K,).

    Returns:
        A scalar.

    Example:
        >>> float(decrease_penalty(ops.array([0.0, 2.0, 1.5, 3.0])))
        0.5

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 11.
    """
    return ops.sum(ops.relu(values[:-1] - values[1:]))


def slope_change_penalty(knots: Any, values: Any) -> Any:
    """Half the squared changes of slope: `½ Σ_k (s_{k+1} - s_k)²`.

    The negative log density of a Gaussian prior of unit precision on the changes of slope. It is 0
    for every straight line, so that a strong prior leaves Platt scaling.

    Args:
        knots: Increasing knots a (K,).
        values: Values b (K,).

    Returns:
        A scalar.

    Example:
        >>> float(slope_change_penalty(ops.array([0.0, 1.0, 3.0]), ops.array([0.0, 2.0, 2.0])))
        2.0
    """
    segment_slopes = slopes(knots, values)
    changes = segment_slopes[1:] - segment_slopes[:-1]
    return 0.5 * ops.sum(ops.square(changes))


def hat_basis(values: Any, knots: Any) -> Any:
    """The K hat functions of a real value: 1 at their own knot, 0 at the others, linear between.

    Any curve that is linear between the knots and constant outside them is a weighted sum of these.
    A repeated knot has an empty hat. A missing value (NaN) has every hat at 0.

    Args:
        values: Float tensor (n,), NaN for missing.
        knots: Knots (K,), not decreasing, of the same dtype.

    Returns:
        A tensor (n, K): each row is not negative and sums to 1, or is 0 where the value is missing.

    Example:
        >>> print(hat_basis([0.25, 9.0], [0.0, 1.0, 2.0]).numpy())
        [[0.75 0.25 0.  ]
         [0.   0.   1.  ]]
    """
    values, knots = ops.convert_to_tensor(values), ops.convert_to_tensor(knots)
    present = ops.logical_not(ops.isnan(values))[:, None]
    position = values[:, None] - knots[None, :-1]
    # To the next greater knot: a repeated knot passes its segment on to its first occurrence.
    following = ops.searchsorted(knots, knots[:-1], side="right")
    gap = ops.take(knots, ops.minimum(following, knots.shape[0] - 1)) - knots[:-1]
    # How far the value has gone through each segment, from 0 to 1; never into an empty one.
    passed = ops.clip(ops.divide_no_nan(position, gap), 0.0, 1.0)
    one = ops.ones_like(passed[:, :1])
    rising = ops.concatenate([one, passed], axis=1)
    falling = ops.concatenate([passed, ops.zeros_like(one)], axis=1)
    return ops.where(present, rising - falling, 0.0)
