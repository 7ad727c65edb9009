"""Moments of labelled logits by bin: the log loss at any bias, and the best bias.

With x = l + c, the log loss of a row is `(1 - y) softplus(x) + y softplus(-x)`. Softplus is a
straight line plus `log(1 + exp(-|x|))`. Within a bin of logits, the loss is therefore a linear
part, exact from four sums by label, and a smooth part, which does not depend on the labels.

**Bins.** 1/4 wide on [-16, 16), 1/2 wide from there to ±88, and one open bin at each end: 418 in
all (`_logit_bins`). The logits inside are -88 ≤ l < 88. Let u be the offset from the centre in
units of half the width (in the open bins: the offset from ±88, in logits). For each bin, it holds
`Σ w (1 - y)`, `Σ w y`, `Σ w (1 - y) u`, `Σ w y u` and `Σ w Tₖ(u)` for k = 2 … 5, where Tₖ are the
Chebyshev polynomials.

**Terms.** These sums give the sum of any polynomial of degree 5 over the rows of a bin. That
includes the polynomial that interpolates a function f at six Chebyshev nodes:
`Σ w f(l) ≈ Σᵢ ωᵢ f(tᵢ)`. A bin thus acts as six weighted rows, for every bias. With two more terms
for the linear part, a sum over rows becomes a sum over eight terms a bin.

**Accuracy.** For a bin of width h and r = h / 2, the interpolation error of a row is at most
`r⁶ / (2⁵ 6!) max |softplus⁽⁶⁾|`, where `|softplus⁽⁶⁾| ≤ σ (1 - σ)`. This is 4e-11 nats and 2e-10 of
the loss for logits in [-16, 16), and 3e-9 nats and 2e-8 of the loss in [-88, 88). Rows in an open
bin count as if they were on the straight line, which neglects at most `softplus(-x)` at ±88, that
is e⁻⁸⁸ without a bias. The sum of these bounds is computed with each loss: **the error of a loss is
at most 1e-6 of it (or 1e-12 nats per row), else the loss is NaN**. It is NaN where a bias moves
logits from beyond ±88 close to 0. In float32, rounding adds about 1e-6.

**Arrays and tensors.** A summary has the shape (groups, 418, 8). Functions take `ops`, which is
`numpy` or `keras.ops`: `monitor` runs without Keras, and metrics are compiled. Some also take
`total`, which sums several arrays over their terms, differently for arrays and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from calibration_records._logit_bins import LARGEST_LOGIT, MOMENT_BINS

# An array of NumPy, or a tensor.
Values = Any
Total = Callable[[list[Values]], list[Values]]

_RELATIVE_ERROR, _ABSOLUTE_ERROR = 1e-6, 1e-12

LARGEST_BIAS, LARGEST_NUM_STEPS = 256.0, 100
TOLERANCE = 1e-5  # the error after a Newton step of this size is about 1e-10
_ROUNDING = {"float32": 3e-7, "float64": 1e-15}
_LARGEST_BIAS_ERROR = {"float32": 1e-2, "float64": 1e-6}
NUM_BINS = MOMENT_BINS.num_bins
# The columns of a bin, in the order of `row_columns`.
COLUMNS = (
    *("negatives", "positives", "negative_offsets", "positive_offsets"),
    *("second", "third", "fourth", "fifth"),
)
NUM_COLUMNS = len(COLUMNS)

_EDGES = MOMENT_BINS.edges
CENTRES = np.concatenate([_EDGES[:1], (_EDGES[1:] + _EDGES[:-1]) / 2, _EDGES[-1:]])[:, None]
HALF_WIDTHS = np.concatenate([[1.0], np.diff(_EDGES) / 2, [1.0]])[:, None]

# The eight terms of a bin: six nodes, the labels at its centre, and the offsets of the labels.
_NUM_NODES = 6
_NODES = np.cos(np.pi * (np.arange(_NUM_NODES) + 0.5) / _NUM_NODES)
_CHEBYSHEV = np.cos(np.arange(_NUM_NODES)[:, None] * np.arccos(_NODES)) * 2 / _NUM_NODES
_CHEBYSHEV[0] /= 2
_TO_NODES = _CHEBYSHEV.T[:, [0, 0, 1, 1, 2, 3, 4, 5]]
# From the columns to the terms, with the labels 0 or the labels 1.
TO_TERMS = [np.concatenate([_TO_NODES, np.eye(NUM_COLUMNS)[label:4:2]]) for label in (0, 1)]
_PLACE = np.tile(np.arange(NUM_COLUMNS), NUM_BINS)  # of a term in its bin
_IS_CENTRE, _IS_OFFSET = _PLACE == _NUM_NODES, _PLACE == _NUM_NODES + 1
_IS_OPEN = np.repeat(np.isin(np.arange(NUM_BINS), (0, NUM_BINS - 1)), NUM_COLUMNS)
IS_NODE = (_PLACE < _NUM_NODES) & ~_IS_OPEN
# x = l + c for a node and for the centre, and half the width for the offsets.
LOGITS = np.hstack([CENTRES + _NODES * HALF_WIDTHS, CENTRES, HALF_WIDTHS]).reshape(-1)
_CENTRE, _REACH = (np.repeat(values, NUM_COLUMNS) for values in (CENTRES, HALF_WIDTHS))
# Of the error of a node: how far σ (1 - σ) can rise within the bin, and the other factors.
_RISE = np.exp(_REACH)
_FACTOR = _REACH**6 / (2**5 * 720)


def row_columns(weights: Values, labels: Values, u: Values, clipped_u: Values) -> list[Values]:
    """What a row adds to the columns of its bin; `logs.query.logit_moments` is the same in SQL.

    Powers are of u clipped to [-1, 1]: the open bins do not need them, and they would overflow.
    """
    negatives = weights * (1 - labels)
    positives = weights * labels
    second = 2 * clipped_u * clipped_u - 1
    third = clipped_u * (2 * second - 1)
    fourth = 2 * second * second - 1
    fifth = 2 * clipped_u * fourth - third
    powers = [weights * power for power in (second, third, fourth, fifth)]
    return [negatives, positives, negatives * u, positives * u, *powers]


def terms(ops: ModuleType, summary: Values) -> tuple[Values, ...]:
    """Weights of the terms, (g, 418 · 8), with the linear part of the labels 0 and of the labels 1.

    The weights of the nodes of a bin sum to its weight; single ones may be negative.
    """
    summary = summary[:, :, None]
    return tuple(
        ops.reshape(
            ops.sum(summary * constant(ops, table, summary), axis=-1), (-1, NUM_BINS * NUM_COLUMNS)
        )
        for table in TO_TERMS
    )


def constant(ops: ModuleType, values: np.ndarray, like: Values) -> Values:
    """Constants in the dtype of other values."""
    return ops.array(values, dtype=like.dtype)


class TermsAt:
    """The terms of each summary at its own bias c, all of shape (g, 418 · 8).

    Attributes:
        weight: The weight of each term, with the linear part of the labels that disagree with the
            sign of x in the bin: labels 0 where x > 0.
        side: 1 where x > 0, else -1.
        tail: `exp(-side x)`.
        rarer: The probability of the label that disagrees with the sign of x, of nodes.
        loss: `softplus(-side x)` for a node, and `side x` for the linear part.
        slope: Its derivative by the bias.
        curvature: Its second derivative.
    """

    def __init__(self, ops: ModuleType, weights: tuple[Values, ...], bias: Values) -> None:
        self._ops = ops
        of_0, of_1 = weights
        logits, has_bias, centre, one = (
            constant(ops, values, of_0) for values in (LOGITS, ~_IS_OFFSET, _CENTRE, np.ones(1))
        )
        self._x = logits + has_bias * bias[:, None]
        # By bin, so that the function is smooth within each. The side of an open bin is fixed.
        is_up = ops.where(_IS_OPEN, centre, centre + bias[:, None]) > 0
        self.side = ops.where(is_up, one, -one)
        self.tail = ops.exp(-self.side * self._x)
        self.weight = ops.where(is_up, of_0, of_1)

    @cached_property
    def rarer(self) -> Values:
        return self.tail / (1 + self.tail)

    @cached_property
    def loss(self) -> Values:
        linear = self._ops.where(_IS_CENTRE | _IS_OFFSET, self.side * self._x, 0.0)
        return self._ops.where(IS_NODE, self._ops.log1p(self.tail), linear)

    @cached_property
    def slope(self) -> Values:
        linear = constant(self._ops, _IS_CENTRE, self._x)
        return self.side * self._ops.where(IS_NODE, -self.rarer, linear)

    @cached_property
    def curvature(self) -> Values:
        return self._ops.where(IS_NODE, self.rarer / (1 + self.tail), 0.0)


def log_loss_and_weight(
    ops: ModuleType, total: Total, weights: tuple[Values, ...], bias: Values
) -> tuple[Values, Values]:
    """`Σ w` log loss of `σ(l + c)` of each summary, NaN where bins are too wide, and `Σ w`."""
    at = TermsAt(ops, weights, bias)
    rise, factor = (constant(ops, values, at.weight) for values in (_RISE, _FACTOR))
    # `tail` is exp(-|x|) at the centre of a bin; for an open bin the centre is the edge.
    error = ops.where(_IS_OPEN, at.tail, ops.minimum(at.tail * rise, 0.25) * factor)
    weight = ops.where(_IS_CENTRE, weights[0] + weights[1], 0.0)
    loss, error, weight = total([at.weight * at.loss, weight * error, weight])
    allowed = _RELATIVE_ERROR * loss + _ABSOLUTE_ERROR * weight
    return ops.where(error <= allowed, loss, float("nan")), weight


class BiasSearch(NamedTuple):
    """The state of the search for the bias of each summary, all of shape (g,).

    The bias c is `argmin_c` of the log loss of `σ(l + c)`, where `Σ w σ(l + c) = Σ w y`. The
    equation is solved in logits, `logit mean σ(l + c) = logit mean y`, where it is nearly linear in
    c: by Newton steps from c = 0, with bisection where a step leaves the bracket.

    `low` and `high` are the ends of the bracket, `moved` is the length of the last step, `is_known`
    is 1 where the bias is accurate enough. The sums stay as they are: `Σ w (1 - y)`, `Σ w y`, and
    `Σ w` of the open bins.

    Reference:
        Fan et al., *Calibration-then-Calculation*, arXiv 2401.16692 (their bias is -c).
    """

    bias: Values
    low: Values
    high: Values
    moved: Values
    is_known: Values
    negatives: Values
    positives: Values
    below: Values
    above: Values

    def result(self, ops: ModuleType) -> Values:
        """The bias at the end of the search; NaN where rows do not determine it."""
        is_found = ops.logical_and(self.is_known > 0, ops.abs(self.bias) < LARGEST_BIAS - 1)
        return ops.where(is_found, self.bias, float("nan"))

    def improved(
        self, ops: ModuleType, total: Total, weights: tuple[Values, ...], dtype: str
    ) -> BiasSearch:
        """The state after one more step."""
        bias, negatives, positives = self.bias, self.negatives, self.positives
        rounding = _ROUNDING[dtype]
        at = TermsAt(ops, weights, bias)
        # `Σ w σ - Σ w y` from the labels that disagree with each bin's side: no large sums cancel.
        slope = at.weight * at.slope
        excess, size, curvature = total([slope, ops.abs(slope), at.weight * at.curvature])
        # Relative to the terms, which are all tiny where a threshold separates the labels.
        sum_error = 4 * rounding * size
        is_lost = ops.abs(excess) <= sum_error
        excess = ops.clip(excess, (rounding - 1) * positives, (1 - rounding) * negatives)
        ones = positives + excess
        zeros = negatives - excess
        share = excess * (1 / positives + 1 / negatives)
        # The logit of the mean prediction minus that of the mean label.
        value = ops.log1p(share * (negatives / zeros))
        low = ops.where(excess < 0, bias, self.low)
        high = ops.where(excess > 0, bias, self.high)
        # Where the slope is lost to rounding, the step is infinite.
        proposed = bias - value / (curvature * (1 / ones + 1 / zeros))
        # At the root, the bias is itself an end of the bracket and must be allowed to stay there.
        inside = ops.logical_and(proposed >= low, proposed <= high)
        improved = ops.where(is_lost, bias, ops.where(inside, proposed, 0.5 * (low + high)))
        # What the open bins neglect: an error of the sum over rows moves the bias by that error
        # over the curvature. (The exponent is capped at 0, where the error is too large anyway.)
        beyond = self.below * ops.exp(ops.minimum(bias - LARGEST_LOGIT, 0.0))
        beyond += self.above * ops.exp(ops.minimum(-bias - LARGEST_LOGIT, 0.0))
        # Where all predictions are 0 or 1 before and after, no bias is better than another.
        is_determined = sum_error <= _LARGEST_BIAS_ERROR[dtype] * curvature
        is_known = ops.where(ops.logical_and(is_determined, beyond <= 1e-7 * curvature), 1.0, 0.0)
        return self._replace(
            bias=improved, low=low, high=high, moved=ops.abs(improved - bias), is_known=is_known
        )
