"""FieldHead: the base class of the heads with a direct fit to field values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from calibration_records._check import known, positive, refused
from keras_calibration._rows.line import IDENTITY, Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.reference_line import reference_line
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.calibrator import check_calibrator
from keras_calibration.layers.field_ids import (
    Fields,
    Reads,
    check_features,
    checked_fields,
    serialize_fields,
    table_rows,
    table_starts,
    vocabulary_sizes,
)
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head
from keras_calibration.layers.logits import check_column


class FieldHead(Head):
    """Base of the heads that add effects of field values to a curve of the logit.

    A subclass creates its weights in `_add_weights` and fits them in `_fit_effects`. Its weight
    `_deviations` holds the prior standard deviation of each feature's levels in the first column.

    Args:
        fields: Field name → number of ids, or a Keras lookup layer.
        calibrator: η, a head that reads no features, or None for the logit itself.
        prior_scale: Median of the half-Cauchy prior on each standard deviation, in logits.
        **kwargs: Keyword arguments of every Keras layer (`name`, `dtype`, `trainable`).
    """

    _deviations: keras.Variable

    def __init__(
        self,
        fields: Fields,
        calibrator: Head | None = None,
        prior_scale: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fields = checked_fields(fields)
        self.calibrator = calibrator
        if not self.feature_names and not self.follows_time:
            example = 'Pass fields={"site_id": 5000}, for example.'
            raise refused("fields", "a mapping with at least one field", self.fields, example)
        check_calibrator(calibrator)
        self.prior_scale = float(prior_scale)
        positive("prior_scale", self.prior_scale)

    def parts(self) -> list[Head]:
        """η, if there is one."""
        return [] if self.calibrator is None else [self.calibrator]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features that the head reads: its fields, then its numeric columns."""
        reads = self.reads()
        return (*reads.fields, *reads.numeric)

    def check_logits(self, shape: Shape) -> None:
        """Raises for other than one logit per row, also if η accepts class logits."""
        check_column(shape, type(self).__name__, "logits")

    def reads(self) -> Reads:
        """Its fields."""
        return Reads(self.fields)

    def build(
        self, logits_shape: Shape | None = None, features_shape: Mapping[str, Shape] | None = None
    ) -> None:
        """Creates the weights; the layer starts as the identity."""
        self._num_values = vocabulary_sizes(self.fields)
        if self.calibrator is not None:
            self.calibrator.ensure_built()
        self._add_weights()
        self.built = True

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """Fits η, then the effects of field values on top of it.

        Without η, a line makes the logits nearly calibrated first, so that the priors are in logits
        whatever the unit of the scores. The weights are then converted back to the scores.
        """
        if self.calibrator is None:
            line = reference_line(rows)
            return self._fit_effects(rows, line(rows.logits), line, None, start)
        inner = self.calibrator.fitted(rows, settings)
        return self._fit_effects(rows, inner.logits(rows), IDENTITY, inner, start)

    def _add_weights(self) -> None:
        """Creates the weights, after `build` has set the number of values of each field."""
        raise NotImplementedError(f"{type(self).__name__} does not define `_add_weights`.")

    def _fit_effects(
        self, rows: Rows, curve: np.ndarray, line: Line, inner: Fit | None, start: Fit | None
    ) -> Fit:
        """The fit of the effects on top of `curve` (n,), the values of η from the fit `inner`."""
        raise NotImplementedError(f"{type(self).__name__} does not define `_fit_effects`.")

    @property
    def num_values(self) -> dict[str, int]:
        """The number of values of each field."""
        return self._num_values if self.built else vocabulary_sizes(self.fields)

    def _find_ids(self, features: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The ids of each field (n,), int64, of the features of rows."""
        if not self.fields:
            return []
        # `_find_places` counts rows in the table of all fields; each field starts at its own row.
        starts = table_starts(self.num_values.values())
        return list(np.asarray(self._find_places(features)) - starts[:, None])

    def get_deviations(self) -> dict[str, float]:
        """Name → s, the standard deviation of a feature's levels in logits; 0 before `fit`."""
        # Curves by field value have columns for levels, slopes and bends. Offsets have the standard
        # deviation of levels alone.
        of_levels = np.atleast_2d(self._read_value("_deviations").T)[0]
        return dict(zip(self.feature_names, map(float, of_levels), strict=True))

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            **super().get_config(),
            "fields": serialize_fields(self.fields),
            "calibrator": keras.saving.serialize_keras_object(self.calibrator),
            "prior_scale": self.prior_scale,
        }

    def _apply_curve(self, logits: Tensor) -> Tensor:
        return logits if self.calibrator is None else self.calibrator(logits)

    def _find_rows(self, field: str) -> slice:
        """The rows of a field's values in the table of all fields; builds the layer."""
        self.ensure_built()
        known("Argument `field` must be one of the fields", [field], self.fields)
        # Without the last row of the field, which is "other".
        start = table_starts(self.num_values.values())[list(self.fields).index(field)]
        return slice(start, start + self.num_values[field])

    def _find_places(self, features: Features | None) -> Tensor:
        """Indices of the offsets of each row, shape (fields, batch), int32."""
        check_features(features, self.fields, type(self).__name__)
        return table_rows(features or {}, self.fields, self.num_values)
