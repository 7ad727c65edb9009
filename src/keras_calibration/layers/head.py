"""Head: the base class of the layers that calibrate from a logit and features."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_calibration._columns import by_name, column_of, ids_of, select_features
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.calibrator import (
    Calibrator,
    calibration_dtype,
    check_column,
    check_labels_given,
)
from keras_calibration.layers.field_ids import called_features, id_fields
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.head_logits import head_log_losses, head_logits
from keras_calibration.layers.network_trainer import weights_of
from keras_calibration.layers.posterior_layer import PosteriorLayer
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator
from keras_calibration.solvers.class_rows import warn_of_absent_classes
from keras_calibration.solvers.data_checks import Rows, check_rows, warn_of_probabilities


class Head(PosteriorLayer):
    """Base of the heads of a `CalibratedModel`: `q(l, x) = σ(head(l, x))`.

    A head is called as `head(logits, features)` and returns calibrated logits (batch, 1), or one
    per class (see `ClassNeuralCalibration`). To write your own, implement `call` and
    `feature_names`, and create the weights in `build` so that the head starts as the identity.
    `CalibratedModel` can then train, save and export it. If you also implement `fit_rows`, the head
    has a direct fit, which `fit`, `CalibratedModel.fit` and `refresh_savedmodel` use. With
    `logit_standard_deviation` it also has intervals (`interval`).

    Args:
        dtype: Dtype or dtype policy; half precision becomes float32.
        **kwargs: Keyword arguments of every Keras layer (`name`, `trainable`).

    Attributes:
        fit_summary: The `FitSummary` of the last fit, else None. Not saved.

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1).
        features: A mapping of feature names to tensors with `batch` rows.

    Example:
        >>> from keras_calibration.layers import BiasCorrection
        >>> @keras.saving.register_keras_serializable(package="my_package")
        ... class MobileOffset(Head):
        ...     '''An offset for the rows of mobile devices.'''
        ...
        ...     @property
        ...     def feature_names(self):
        ...         return ("is_mobile",)
        ...
        ...     def build(self, logits_shape=None, features_shape=None):
        ...         self.offset = self.add_weight(shape=(), initializer="zeros")
        ...
        ...     def call(self, logits, features):
        ...         is_mobile = keras.ops.cast(features["is_mobile"], self.compute_dtype)
        ...         columns = [keras.ops.reshape(each, (-1, 1)) for each in (logits, is_mobile)]
        ...         return columns[0] + self.offset * columns[1]
        ...
        ...     def fit_rows(self, rows, features, settings, verbose):
        ...         mobile = features["is_mobile"].reshape(-1) == 1
        ...         bias = BiasCorrection()
        ...         bias.fit(rows.logits[mobile], rows.labels[mobile], rows.row_weights[mobile])
        ...         self.offset.assign(bias.bias)
        ...         return self.summary_of(rows, features)
        >>> head = MobileOffset()
        >>> features = {"is_mobile": np.array([0, 0, 1, 1, 1, 1])}
        >>> print(head.fit(np.zeros(6), [0, 1, 0, 0, 0, 1], features))
        6 rows: log loss 0.693147 before, 0.605939 after (-0.087208); converged in 1 step
    """

    def __init__(self, *, dtype: str | keras.DTypePolicy | None = None, **kwargs: Any) -> None:
        super().__init__(dtype=calibration_dtype(dtype), **kwargs)
        self.fit_summary: FitSummary | None = None
        self._fitted_weights: str | None = None

    def __call__(self, logits: Tensor, features: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """Calls the layer; `features` may also hold columns of a data frame, or be one."""
        if features is None:
            return super().__call__(logits, *args, **kwargs)
        names, readers = self.feature_names, self.field_readers()
        columns = called_features(features, names, readers, type(self).__name__)
        return super().__call__(logits, columns, *args, **kwargs)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The features that the head reads; None if unknown, in which case it gets all features."""
        return ()

    # Methods, not properties: Keras saves every layer that it finds in an attribute of a layer.
    def calibrators(self) -> Sequence[Calibrator]:
        """The calibrators inside the head."""
        return ()

    def field_readers(self) -> Sequence[keras.layers.Layer]:
        """The layers inside the head that have `fields` and `field_ids(features, field)`."""
        return ()

    def lone_calibrator(self) -> Calibrator | None:
        """The calibrator, if the head consists of nothing else; else None."""
        return None

    @property
    def has_direct_fit(self) -> bool:
        """Whether the head has a direct fit."""
        return type(self).fit_rows is not Head.fit_rows

    @property
    def is_adapted(self) -> bool:
        """Whether `adapt` has been called, or is not needed."""
        return True

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Sets up state from development data before training; does nothing by default.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1).
            labels: Labels in [0, 1] (n,) or (n, 1).
            features: A mapping of feature names to arrays with n rows.
            sample_weight: Sample weights (n,) or (n, 1), or None.
        """

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        settings: FitSettings | None = None,
        verbose: int = 0,
    ) -> FitSummary:
        """Fits the head to labelled rows by its direct fit; replaces any earlier fit.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1), finite; class logits (n, K).
            labels: Labels in [0, 1] (n,) or (n, 1), of both classes. For class logits: class
                numbers (n,) or (n, 1), or one-hot or soft labels (n, K).
            features: A mapping of feature names to arrays with n rows, or a data frame.
            sample_weight: Sample weights (n,) or (n, 1), not negative; ones by default.
            settings: How to train the head's network, if it has one.
            verbose: 1 shows a progress bar while a network is trained.

        Returns:
            A `FitSummary`: log loss before and after, number of steps, convergence.

        Raises:
            ValueError: If a row is invalid, a feature is missing, the numbers of rows differ, or
                the head has no direct fit. The layer is then unchanged.

        Warns:
            UserWarning: If the logits look like probabilities or like the labels; if a class has no
                rows.
        """
        taker = type(self).__name__
        check_labels_given(labels, taker)
        self.check_direct_fit()
        warn_of_probabilities(logits, labels)
        rows = self.check_rows(logits, labels, sample_weight)
        warn_of_absent_classes(rows)
        return self.fit_checked(rows, features, settings, verbose)

    def fit_checked(
        self,
        rows: Rows,
        features: Mapping[str, ArrayLike] | None = None,
        settings: FitSettings | None = None,
        verbose: int = 0,
    ) -> FitSummary:
        """As `fit`, for rows from `check_rows`: what is wrong with them has been said.

        Args:
            rows: Logits, labels and weights.
            features: A mapping of feature names to arrays with n rows.
            settings: How to train the head's network, if it has one.
            verbose: 1 shows a progress bar while a network is trained.

        Returns:
            A `FitSummary`.
        """
        columns = self.read_features(features, len(rows.logits))
        # This call builds the head and checks the shapes.
        self(rows.logits[:1], {name: column[:1] for name, column in columns.items()})
        with unchanged_if_refused(self):
            summary = self.fit_rows(rows, columns, settings or FitSettings(), verbose)
        self.remember_fit(summary)
        return summary

    def check_direct_fit(self) -> None:
        """Raises if the head has no direct fit."""
        if not self.has_direct_fit:
            raise ValueError(
                f"{type(self).__name__} has no direct fit, or one of its parts has none. Received: "
                f"{self!r}. Train it by gradient, or define `fit_rows`."
            )

    def remember_fit(self, summary: FitSummary | None) -> None:
        """Sets `fit_summary`, and notes that the weights of now are those of the fit."""
        self.fit_summary, self._fitted_weights = summary, hash_of_weights(self)

    @property
    def is_as_fitted(self) -> bool:
        """Whether the head still has the weights of its last fit."""
        return self._fitted_weights is not None and self._fitted_weights == hash_of_weights(self)

    def fit_rows(
        self,
        rows: Rows,
        features: Mapping[str, np.ndarray],
        settings: FitSettings,
        verbose: int,
    ) -> FitSummary:
        """Fits the built head to checked rows and assigns its weights.

        Args:
            rows: Logits, labels and weights (n,), float64.
            features: Feature name → array with n rows, for each of `feature_names`.
            settings: How to train the head's network.
            verbose: 1 shows a progress bar.

        Returns:
            A `FitSummary`, for example from `summary_of`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `fit_rows`.")

    def check_rows(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None,
        both_classes: bool = True,
    ) -> Rows:
        """Checks the rows of a fit and flattens them; raises if they cannot be fitted."""
        return check_rows(logits, labels, sample_weight, both_classes)

    def summary_of(
        self,
        rows: Rows,
        features: Mapping[str, np.ndarray],
        num_iterations: int = 1,
        converged: bool = True,
    ) -> FitSummary:
        """The summary of a fit that has just ended, for `fit_rows` to return."""
        before, after = (
            float(np.average(head_log_losses(rows.labels, logits), weights=rows.weights))
            for logits in (rows.logits, head_logits(self, rows.logits, features))
        )
        return FitSummary(len(rows.logits), before, after, num_iterations, converged)

    def calibrated_logits(self, logits: Tensor, features: Features) -> Tensor:
        """Calibrated logits (batch, 1)."""
        return self(logits, features)

    def read_features(
        self, features: Mapping[str, ArrayLike] | None, num_rows: int
    ) -> dict[str, np.ndarray]:
        """The features that the head reads, as arrays; raises if they do not fit the rows."""
        reader, names = type(self).__name__, self.feature_names
        given = by_name({} if features is None else features)
        read = select_features(given, given if names is None else names, reader)
        ids = id_fields(self.field_readers())
        columns = {name: _read(values, name, name in ids) for name, values in read.items()}
        for name, column in columns.items():
            if len(column) != num_rows:
                raise ValueError(
                    "Logits and features must have the same number of rows. Received: "
                    f"{num_rows} logits and {len(column)} rows of {name!r}."
                )
        return columns

    def finalize(self) -> None:
        """Adjusts the weights after training; does nothing by default."""

    def compute_output_shape(
        self, logits_shape: Shape, features_shape: Mapping[str, Shape] | None = None
    ) -> Shape:
        """`(batch, 1)`; raises for other logits, which Keras asks before it calls the head."""
        check_column(logits_shape, type(self).__name__, "logits")
        return (*logits_shape[:1], 1)


@contextlib.contextmanager
def unchanged_if_refused(head: Head) -> Iterator[None]:
    """Restores the weights and histograms of a built head if the block raises."""
    weights = weights_of(head)
    streaming = [part for part in head.calibrators() if isinstance(part, StreamingCalibrator)]
    histograms = [part._histogram for part in streaming]
    try:
        yield
    except BaseException:
        head.set_weights(weights)
        for part, histogram in zip(streaming, histograms, strict=True):
            part._histogram = histogram
        raise


def hash_of_weights(head: Head) -> str:
    """SHA-256 hash of the values of all weights of a head."""
    digest = hashlib.sha256()
    for weight in head.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def _read(values: ArrayLike, name: str, is_id: bool) -> np.ndarray:
    column = ids_of(values, repr(name)) if is_id else column_of(values, repr(name))
    return np.asarray(column)
