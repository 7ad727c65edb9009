"""HistogramBinning: the positive rate of each of a few bins of the logit."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.step_fit import equal_mass_steps, tied_rows


@keras.saving.register_keras_serializable(package="keras_calibration")
class HistogramBinning(Calibrator):
    """Histogram binning: `logit(Σ w y / Σ w)`, sums over the rows of the fit in the logit's bin.

    The bins hold equal weight, as far as ties in the logit allow: equal logits share a bin, and
    there may then be fewer bins. The end bins are open.

    It does not keep the ranking: the logits of a bin all come out as one, and the positive rate of
    a higher bin may be the lower one. A bin without a positive counts as half a positive, one of
    nothing but positives as half a negative, so that the calibrated logits are finite, also those
    of infinite logits; a positive is worth the mean weight of the rows. (With equal weights, the
    rate of n rows is held in [½/n, 1 - ½/n].)

    The layer has no trainable weights: it learns from `fit` alone, and is the identity before.
    The fit needs the rows themselves: there is no `update`, call `fit` with all of them.

    Args:
        num_bins: Number of bins, at least 1.
        **kwargs: What every Keras layer takes (`name`, `dtype`, `trainable`).

    Raises:
        ValueError: If `num_bins` is out of its range.

    Example:
        >>> layer = HistogramBinning(num_bins=2)
        >>> summary = layer.fit(np.arange(8.0), [0, 0, 0, 1, 0, 1, 1, 1])
        >>> layer.edges, layer.values.round(4)
        (array([4.], dtype=float32), array([-1.0986,  1.0986], dtype=float32))
        >>> print(layer(np.array([-9.0, 3.9, 4.0])).numpy().round(4))
        [-1.0986 -1.0986  1.0986]

    Reference:
        Zadrozny and Elkan, *Obtaining calibrated probability estimates from decision trees and
        naive Bayesian classifiers*, ICML 2001.
    """

    def __init__(self, num_bins: int = 20, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(num_bins, int) or num_bins < 1:
            raise ValueError(
                "Argument `num_bins` must be a whole number of at least 1. "
                f"Received: num_bins={num_bins!r}."
            )
        self.num_bins = num_bins

    def build(self, input_shape: Any = None) -> None:
        """Creates edges and values; bins that are not in use have the edge infinity."""
        shapes = {"edges": (self.num_bins - 1,), "values": (self.num_bins,), "is_fitted": ()}
        for name, shape in shapes.items():
            weight = self.add_weight(
                name=name,
                shape=shape,
                initializer=keras.initializers.Constant(np.inf if name == "edges" else 0.0),
                trainable=False,
            )
            setattr(self, f"_{name}", weight)
        self.built = True

    def calibrate(self, logits: Any) -> Any:
        """The value of the logit's bin; NaN stays NaN."""
        edges = ops.convert_to_tensor(self._edges)
        bin_number = ops.searchsorted(edges, ops.reshape(logits, (-1,)), side="right")
        steps = ops.take(ops.convert_to_tensor(self._values), bin_number)
        stays = ops.logical_or(ops.isnan(logits), ops.convert_to_tensor(self._is_fitted) == 0)
        return ops.where(stays, logits, ops.reshape(steps, ops.shape(logits)))

    def fit_rows(self, rows: Rows) -> FitSummary:
        """The closed form: quantiles and rates."""
        tied = tied_rows(rows, self.variable_dtype)
        steps = equal_mass_steps(tied, self.num_bins)
        num_unused = self.num_bins - len(steps.values)
        self._edges.assign(np.pad(steps.first[1:], (0, num_unused), constant_values=np.inf))
        self._values.assign(np.pad(steps.values, (0, num_unused), mode="edge"))
        self._is_fitted.assign(1.0)
        return FitSummary(
            num_rows=len(rows.logits),
            log_loss_before=tied.mean_log_loss(tied.logits),
            log_loss_after=tied.mean_log_loss(np.repeat(steps.values, steps.sizes)),
            num_iterations=0,
            converged=True,
        )

    @property
    def edges(self) -> np.ndarray:
        """The logits at which a next bin begins, increasing (bins in use - 1,)."""
        self.ensure_built()
        edges = ops.convert_to_numpy(self._edges)
        return edges[edges < np.inf]

    @property
    def values(self) -> np.ndarray:
        """The calibrated logit of each bin in use (bins in use,)."""
        return ops.convert_to_numpy(self._values)[: len(self.edges) + 1]

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {**super().get_config(), "num_bins": self.num_bins}
