"""HistogramHead: the base class of the heads whose fit needs only a histogram of the logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import share
from keras_calibration._rows.checks import refuse_absent_classes
from keras_calibration._rows.door import Given, rows_of
from keras_calibration._rows.line import Line
from keras_calibration._rows.metric_rows import accumulator_dtype
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import LogisticFit, mean_log_loss
from keras_calibration._solvers.logit_histogram import (
    LARGEST_LOGIT,
    LogitHistogram,
    logit_histogram,
    warn_of_other_unit,
)
from keras_calibration._solvers.reference_line import bins_of, seen_as_logits
from keras_calibration._typing import Features, Tensor
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import assign_all
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import check_column, is_not_finite
from keras_calibration.layers.posterior import Posterior

_STORED = "logit_histogram_"


@dataclass(frozen=True)
class FittedCurve:
    """The curve of a calibrator, as it was fitted to a histogram.

    Args:
        solved: The end of the fit, with the factor F of the posterior of θ.
        at: The curve: calibrated logits, for logits of any shape, float64.
        weights: The weights of the layer, see `Fit`.
    """

    solved: LogisticFit
    at: Callable[[np.ndarray], np.ndarray]
    weights: Mapping[str, Any]


class HistogramHead(Head):
    """Base of the logit-only calibrators whose direct fit needs only a `LogitHistogram`.

    A subclass creates its weights and its `posterior` in `build`, and implements `calibrate`,
    `fit_histogram` and `derivatives`. It returns the shape of its logits.

    `fit` reads the rows once and keeps their histogram, a few thousand sums. `update` adds new rows
    to the histogram and fits again: a deployed calibrator is updated without the earlier rows. The
    histogram is saved with the layer (`.keras` and `.weights.h5` files), so `update` also works
    after loading. It is not a weight: Keras' export does not include it, but `export_savedmodel`
    keeps it in `assets.extra/head.keras`.

    Args:
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Example:
        >>> import numpy as np
        >>> from keras_calibration.layers import BiasCorrection
        >>> logits, labels = np.zeros(8), np.array([1, 0, 0, 0, 1, 0, 0, 0])
        >>> layer = BiasCorrection()
        >>> first = layer.fit(logits[:4], labels[:4])
        >>> both = layer.update(logits[4:], labels[4:])
        >>> both.num_rows, round(layer.bias, 4)
        (8, -1.0986)
    """

    # Whether a fit to scaled logits, and to shifted logits, gives the same probabilities.
    has_free_scale = has_free_shift = False

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits, with the shape of `logits`."""
        return self.calibrate(ops.cast(logits, self.compute_dtype))

    def calibrate(self, logits: Tensor) -> Tensor:
        """Calibrated logits, for logits of any shape in the layer's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define `calibrate`.")

    def bins_of(self, rows: Rows) -> Line:
        """The line that maps the logits of a first fit to the bins of its histogram."""
        return bins_of(rows.logits, rows.weights)

    def fit_curve(self, histogram: LogitHistogram) -> FittedCurve:
        """`fit_histogram`, on nearly calibrated logits if their scale or shift is free."""
        return self.fit_histogram(
            seen_as_logits(histogram, has_scale=self.has_free_scale, has_shift=self.has_free_shift)
        )

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits the curve to the histogram of checked rows."""
        histogram = _build_histogram(rows, self.bins_of(rows))
        fit = self.fitted_to_sums(histogram)
        ends = histogram.bins(np.array([rows.logits.min(), rows.logits.max()]))
        if self._is_affine_in_bins() and np.abs(ends).max() <= LARGEST_LOGIT:
            return fit
        # The histogram takes logits beyond its last bin for logits at its end, and a curve that
        # bends within a bin for a line. Compute the log loss of the rows themselves then.
        steps = fit.summary.num_iterations, fit.summary.converged
        return replace(fit, summary=FitSummary.of(rows, fit.logits(rows), *steps))

    def fitted_to_sums(self, histogram: LogitHistogram, are_counts: bool | None = None) -> Fit:
        """The fit to rows that are summed in a histogram, which it keeps for `update`.

        Args:
            histogram: The sums.
            are_counts: Whether the weights of the rows are counts; None reads it from the sums.

        Raises:
            ValueError: If all labels are of one class.
        """
        refuse_absent_classes([histogram.negatives, histogram.positives], histogram.num_rows)
        curve = self.fit_curve(histogram)
        # Both log losses, before and after, come from the sums: the rows are not read again.
        solved = curve.solved
        summary = FitSummary(
            round(histogram.num_rows),
            mean_log_loss(histogram),
            solved.log_loss,
            solved.num_iterations,
            solved.converged,
        )
        are_counts = histogram.is_of_counts if are_counts is None else are_counts

        def spread(logits: np.ndarray) -> np.ndarray:
            # JAX has float64 only with `jax_enable_x64`, and warns if it is asked for.
            seen = ops.convert_to_tensor(logits, accumulator_dtype())
            factor = ops.convert_to_tensor(solved.factor, accumulator_dtype())
            return np.asarray(self.logit_spread(seen, factor, curve.weights)).astype("float64")

        return Fit(
            summary,
            lambda rows: curve.at(rows.logits),
            curve.weights,
            posterior={"factor": solved.factor, "is_of_counts": float(are_counts)},
            histogram=histogram,
            spread=spread,
        )

    @np.errstate(under="ignore")
    def update(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        forget: float = 0.0,
        from_logits: bool = True,
        weights_are: str = "importance",
    ) -> FitSummary:
        """Adds rows to those of earlier fits and updates, without the earlier rows.

        With `forget=0`, the result is that of one `fit` to all rows, with one difference: the
        histogram keeps the bins of the first fit, and knots lie on their edges. The new rows may be
        of one class, for example an hour without positives.

        Args:
            logits: New uncalibrated logits (n,) or (n, 1), finite.
            labels: Labels of the new rows in [0, 1], (n,) or (n, 1).
            features: Not read.
            sample_weight: Weights of the new rows, (n,) or (n, 1), not negative; ones by default.
            forget: Share of the weight of all earlier rows to drop first, in [0, 1]. With hourly
                updates, a half-life of h hours is `forget = 1 - 0.5 ** (1 / h)`.
            from_logits: As for `fit`.
            weights_are: As for `fit`. Importances must have the same unit in all calls: a common
                factor of all rows changes nothing, but a factor of one batch does. A row without
                weight, and a row with the count 1, have weight 1.

        Returns:
            The `FitSummary` of the fit to all rows.

        Raises:
            ValueError: As for `fit`; if `forget` is out of its range; or if the layer was trained
                or set by other means, so that its earlier rows are unknown. It is then unchanged.
        """
        check_column(np.shape(logits), f"`update` of {type(self).__name__}", "logits")
        rows = rows_of(
            Given(
                logits,
                labels,
                sample_weight,
                features,
                from_logits=from_logits,
                weights_are=weights_are,
                both_classes=False,
            )
        )
        # Only sums on the same bins add up, so the bins of the first fit stay.
        bins = self.bins_of(rows) if self.histogram is None else self.histogram.bins
        return self.update_sums(_build_histogram(rows, bins), forget)

    def fit_sums(self, histogram: LogitHistogram) -> FitSummary:
        """Fits the layer to rows summed in a histogram, see `fitted_to_sums`."""
        return self._assign_fit(self.fitted_to_sums(histogram))

    def update_sums(self, histogram: LogitHistogram, forget: float = 0.0) -> FitSummary:
        """`update` with rows summed in a histogram."""
        share("forget", forget, also=": it is the share of the old weight to drop", ends="01")
        # Without a histogram, only a layer that is as new can take its first rows here.
        if self.histogram is None and self._is_fitted():
            raise ValueError(
                "`update` requires the histogram of the rows of earlier fits. Received: a "
                f"{type(self).__name__} whose weights were set in another way. Call `fit`."
            )
        # The sum is of counts only if both parts are, in the same unit. Forgetting makes fractions
        # of counts: they count for less than the rows, which makes no interval too narrow.
        are_counts = histogram.is_of_counts
        if self.histogram is not None and forget < 1:
            warn_of_other_unit(self.histogram, histogram)
            are_equal = math.isclose(self.histogram.unit, histogram.unit)
            was_counts = self.posterior is None or self.posterior.is_of_counts
            are_counts = are_counts and was_counts and are_equal
            # Rows that were summed elsewhere may have other bins: move them to the first fit's.
            histogram = self.histogram.scaled(1 - forget) + histogram.on_bins(self.histogram.bins)
        return self._assign_fit(self.fitted_to_sums(histogram, are_counts))

    def fit_histogram(self, histogram: LogitHistogram) -> FittedCurve:
        """The curve that is fitted to a histogram with both classes."""
        raise NotImplementedError(f"{type(self).__name__} does not define `fit_histogram`.")

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the calibrated logit, `|dη/dθ F|` with `F Fᵀ = H⁻¹`.

        H is the Hessian of the penalised log loss, summed over the rows of the fit, by the
        parameters θ, in which η is linear.

        Args:
            logits: Uncalibrated logits (batch,) or (batch, 1).
            features: Not read.

        Returns:
            A tensor with the shape of `logits`, in logits.
        """
        if not self.num_posterior_columns:
            return super().logit_standard_deviation(logits, features)
        check_column(logits.shape, type(self).__name__, "logits")
        spread = self.posterior_spread(ops.reshape(logits, (-1,)))
        return ops.reshape(ops.sqrt(ops.sum(ops.square(spread), axis=1)), ops.shape(logits))

    @property
    def num_posterior_columns(self) -> int:
        """Number p of columns of F; 0 if the layer keeps no posterior."""
        self.ensure_built()
        return 0 if self.posterior is None else int(self.posterior["factor"].shape[1])

    def posterior_spread(self, logits: Tensor) -> Tensor:
        """`dη/dθ F` (batch, p), for logits (batch,), if the layer keeps a posterior."""
        logits = ops.cast(logits, self.compute_dtype)
        finite = ops.where(is_not_finite(logits), 0.0, logits)  # 0 times infinity would be NaN
        spread = self.logit_spread(finite, cast(Posterior, self.posterior)["factor"])
        # Far out, terms of both signs may be infinite, and their sum is NaN.
        overflows = ops.isnan(spread) & (ops.abs(finite) > 1e9)[:, None]
        return ops.where(overflows, float("inf"), spread)

    def logit_spread(
        self, logits: Tensor, factor: Tensor, weights: Mapping[str, Any] | None = None
    ) -> Tensor:
        """`dη/dθ F` (batch, p), for logits (batch,) and F (p, p); by default from `derivatives`.

        Where it depends on weights, those of a fit; None for those of the layer.
        """
        # The delta method: the variance of η at a row is |dη/dθ F|², if F Fᵀ is that of θ. Not by
        # `matmul`, which may round to fewer digits on a GPU.
        columns = zip(self.derivatives(logits), ops.unstack(factor), strict=True)
        return sum(ops.expand_dims(column, 1) * row for column, row in columns)

    def derivatives(self, logits: Tensor) -> Sequence[Tensor]:
        """dη/dθ for each parameter of `fit_histogram`, in its order, for logits (batch,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `derivatives`.")

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Saves the weights and the histogram, if there is one."""
        super().save_own_variables(store)
        if self.histogram is not None:
            for name, array in self.histogram.to_arrays().items():
                store[_STORED + name] = array

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Loads the weights and the histogram, if there is one."""
        # The histogram is no weight: take its arrays out before Keras counts the weights.
        names = list(store.keys())
        super().load_own_variables({n: store[n] for n in names if not n.startswith(_STORED)})
        arrays = {n.removeprefix(_STORED): store[n] for n in names if n.startswith(_STORED)}
        self.histogram = LogitHistogram.from_arrays(arrays) if arrays else None

    def _assign_fit(self, fit: Fit) -> FitSummary:
        self.ensure_built()
        assign_all([(self, fit)])
        return fit.summary

    def _is_fitted(self) -> bool:
        """Whether the curve differs from the curve of a new layer."""
        if not self.built:
            return False
        fresh = type(self).from_config(self.get_config())
        # A fit, or training, has moved the curve somewhere from where it is in a new layer.
        logits = np.linspace(-8, 8, 65)
        before, now = (np.asarray(layer(logits)) for layer in (fresh, self))
        return not np.allclose(before, now, rtol=0, atol=1e-4)

    def _is_affine_in_bins(self) -> bool:
        """Whether η is nearly straight in each bin: the histogram then has the rows' log loss."""
        return True


def _build_histogram(rows: Rows, bins: Line) -> LogitHistogram:
    """The histogram of rows, on these bins."""
    histogram = logit_histogram(rows.logits, rows.labels, rows.weights, bins)
    return replace(histogram, num_rows=float(rows.num_meant), unit=rows.unit)
