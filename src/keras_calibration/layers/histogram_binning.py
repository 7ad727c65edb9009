"""HistogramBinning: the positive rate in bins of the logit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration._typing import Shape, Tensor
from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.step_fit import equal_mass_steps, tied_rows


@keras.saving.register_keras_serializable(package="keras_calibration")
class HistogramBinning(Calibrator):
    """Histogram binning: `logit(Σ w y / Σ w)`, summed over the rows of the fit in the same bin.

    The bins have equal weight, as far as ties allow: equal logits share a bin, so there may be
    fewer bins. The first and last bin are open.

    The ranking is not preserved: all logits of a bin get the same value, and a higher bin may have
    a lower positive rate. A bin without positives counts as having half a positive, a bin without
    negatives as having half a negative. Calibrated logits are therefore finite, also for infinite
    logits. A positive is taken to have the mean weight of the rows. (With equal weights, the rate
    of a bin of n rows is kept within [½/n, 1 - ½/n].)

    The layer has no trainable weights: it learns only by `fit`, and is the identity before. The fit
    needs the rows themselves, so there is no `update`; call `fit` with all rows instead.

    Args:
        num_bins: Maximum number of bins, at least 1.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

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
                "Argument `num_bins` must be an integer of at least 1. Received: "
                f"num_bins={num_bins!r}."
            )
        self.num_bins = num_bins

    def build(self, input_shape: Shape | None = None) -> None:
        """Creates the edges and values; unused bins have the edge infinity."""
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

    def calibrate(self, logits: Tensor) -> Tensor:
        """The value of each logit's bin; NaN stays NaN."""
        edges = ops.convert_to_tensor(self._edges)
        bin_number = ops.searchsorted(edges, ops.reshape(logits, (-1,)), side="right")
        steps = ops.take(ops.convert_to_tensor(self._values), bin_number)
        stays = ops.logical_or(ops.isnan(logits), ops.convert_to_tensor(self._is_fitted) == 0)
        return ops.where(stays, logits, ops.reshape(steps, ops.shape(logits)))

    def fit_rows(
        self,
        rows: Rows,
        features: Mapping[str, np.ndarray],
        settings: FitSettings,
        verbose: int,
    ) -> FitSummary:
        """Computes the bins and their rates in closed form."""
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
        """Edges between the bins in use, increasing logits, shape (bins in use - 1,)."""
        self.ensure_built()
        edges = ops.convert_to_numpy(self._edges)
        return edges[edges < np.inf]

    @property
    def values(self) -> np.ndarray:
        """Calibrated logit of each bin in use, shape (bins in use,)."""
        return ops.convert_to_numpy(self._values)[: len(self.edges) + 1]

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {**super().get_config(), "num_bins": self.num_bins}
