"""Fit: what a direct fit has found, as a value that a head can be given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logit_histogram import LogitHistogram
from keras_calibration.layers.fit_summary import FitSummary


@dataclass(frozen=True)
class Fit:
    """A direct fit of a head, as a value: no weight changes before `Head.assign`.

    Args:
        summary: The figures of the fit.
        logits: The fitted head as a function of rows: calibrated logits (n,) or (n, K), float64.
            Apart from rounding, a head to which this fit is assigned returns the same logits.
        weights: Name of an attribute of the head that holds a weight → the value of this weight.
            If the attribute holds a layer, or a list, the value is the list of its weights' values.
            None means that `assign` leaves the head and its parts as they are.
        parts: The fits of the heads inside the head, in the order of `Head.parts()`.
        posterior: The values of the head's `Posterior`, by name; None if the fit has none.
        histogram: The sums of the rows, if the fit needs no more than these.
        spread: `dη/dθ F` (n, p) of logits (n,), if η has a posterior, see `HistogramHead`.
        effects: The effects (n, E) of rows, of a head with `effect_names`.
        start: From where a fit of the same head to a part of these rows may start, to be faster.

    Example:
        >>> from keras_calibration.layers import BiasCorrection, FitSettings
        >>> rows, head = Rows(np.zeros(4), np.array([0.0, 0.0, 0.0, 1.0]), None), BiasCorrection()
        >>> fit = head.fitted(rows, FitSettings())
        >>> fit.logits(rows).round(4), head.bias  # log(1/3); the head is as it was
        (array([-1.0986, -1.0986, -1.0986, -1.0986]), 0.0)
        >>> head.assign(fit)
        >>> round(head.bias, 4)
        -1.0986
    """

    summary: FitSummary
    logits: Callable[[Rows], np.ndarray]
    weights: Mapping[str, Any] | None = field(default_factory=dict)
    parts: tuple[Fit, ...] = ()
    posterior: Mapping[str, Any] | None = None
    histogram: LogitHistogram | None = None
    spread: Callable[[np.ndarray], np.ndarray] | None = None
    effects: Callable[[Rows], np.ndarray] | None = None
    start: Any = None
