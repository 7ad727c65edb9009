"""SamplingCorrection: undoes the down-sampling of negatives, exactly and without data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from calibration_records._check import share
from calibration_records._columns import refuse_rows
from keras_calibration._rows.rows import Rows
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.field_ids import check_features
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import as_column


@keras.saving.register_keras_serializable(package="keras_calibration")
class SamplingCorrection(Head):
    """Corrects the logit of a model that was trained on a sample of the negatives: `l + log r`.

    If training kept each negative with probability r, and every positive, the odds in the sample
    are 1/r times the odds among all rows. The logit of a model of the sample is then too high by
    exactly `-log r`. Training with class weights has the same effect: a weight w of the positives
    is the rate 1/w, and a weight v of the negatives is the rate v.

    It learns nothing and needs no development set: `CalibratedModel(model,
    SamplingCorrection(0.1))` predicts, saves and exports the corrected probabilities. If the model
    is wrong in other ways too, calibrate it on rows that are not sampled: any calibrator with a
    bias then corrects the shift too. Or calibrate it on the sample, without weights, and add this
    layer: `CalibratedModel(calibrated, SamplingCorrection(0.1))`. To evaluate on sampled rows, give
    each negative the sample weight 1/r: the metrics are then those of all rows.

    Args:
        rate: Share r of the negatives that was kept, in (0, 1], or the name of a feature that holds
            the rate of each row (a column of floats; rates outside (0, 1] give NaN).
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).

    Call arguments:
        logits: Logits (batch,) or (batch, 1) of a model of the sampled rows.
        features: A mapping of feature names to tensors; needed only if `rate` names one.

    Raises:
        ValueError: If `rate` is out of its range, or its feature is missing when called.

    Example:
        >>> sampled = np.array([0.5, 0.8])  # of a model that saw a tenth of the negatives
        >>> logits = np.log(sampled / (1 - sampled))
        >>> corrected = keras.ops.sigmoid(SamplingCorrection(0.1)(logits))
        >>> keras.ops.convert_to_numpy(corrected).round(4)
        array([0.0909, 0.2857], dtype=float32)

    Reference:
        King and Zeng (2001), *Logistic Regression in Rare Events Data*, section 4.1; He et al.
        (2014), *Practical Lessons from Predicting Clicks on Ads at Facebook*, section 6.3.
    """

    def __init__(self, rate: float | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(rate, str):
            share("rate", rate, "Divide percent by 100.", ends="1", also=", or a feature's name")
        self.rate = rate if isinstance(rate, str) else float(rate)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The feature that holds the rates, if there is one."""
        return (self.rate,) if isinstance(self.rate, str) else ()

    def build(
        self, logits_shape: Shape | None = None, features_shape: Mapping[str, Shape] | None = None
    ) -> None:
        """Creates nothing: the layer has no weights."""
        self.built = True

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Corrected logits: with a feature (batch, 1), else with the shape of `logits`."""
        logits = ops.cast(logits, self.compute_dtype)
        if not isinstance(self.rate, str):
            return logits + math.log(self.rate)
        check_features(features, self.feature_names, type(self).__name__)
        rates = as_column(ops.cast((features or {})[self.rate], self.compute_dtype))
        # A graph cannot raise: a rate that is not possible makes the prediction NaN.
        possible = ops.logical_and(rates > 0, rates <= 1)
        return as_column(logits) + ops.log(ops.where(possible, rates, float("nan")))

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits nothing: its figures are the log losses before and after."""
        # Here, unlike in a graph, an impossible rate is an error that names the row.
        for name in self.feature_names:
            rates = np.asarray(rows.features[name], np.float64).reshape(-1)
            refuse_rows(
                ~((rates > 0) & (rates <= 1)),
                rates,
                f"Feature {name!r} must hold rates in (0, 1].",
                "Drop or correct them.",
            )

        def logits(rows: Rows) -> np.ndarray:
            given = rows.features[self.rate] if isinstance(self.rate, str) else self.rate
            return rows.logits + np.log(np.asarray(given, np.float64)).reshape(-1)

        return Fit(FitSummary.of(rows, logits(rows)), logits)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {**super().get_config(), "rate": self.rate}
