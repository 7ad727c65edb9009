"""Head: the base class of the layers that calibrate from a logit and features."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import confidence_level
from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.door import Given, columns_of
from keras_calibration._rows.rows import Rows
from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.field_ids import Reads, called_features
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import (
    assign_all,
    build_for,
    fit_to,
    hash_of_weights,
    load_fit,
    own_values,
    rows_to_fit,
    save_fit,
    settings_for,
    values_of,
    wanted_by,
)
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.layers.logits import (
    calibration_dtype,
    check_column,
    check_columns,
    check_same_rows,
)
from keras_calibration.layers.posterior import Posterior, bounds_of
from keras_calibration.layers.unknown_values import warn_of_unknown

if TYPE_CHECKING:
    from keras_calibration._solvers.level import Level
    from keras_calibration._solvers.logit_histogram import LogitHistogram


class Head(keras.layers.Layer):
    """Base of all heads: layers that map logits, and features, to calibrated logits.

    A head is called as `head(logits, features)`, or as `head(logits)` if it reads no features, and
    returns as many logits as it gets: one per row, `q(l, x) = σ(head(l, x))`, or one per class,
    with the softmax in place of σ. A head that reads no features is called a calibrator.

    To write your own, implement `call` and, if it reads features, `feature_names`, and create the
    weights in `build` so that it starts as the identity. With `fitted` it has a direct fit, for
    `fit`, `fit_head` and `refresh_savedmodel`; with `logit_standard_deviation` also intervals. A
    head accepts one logit per row; a head for classes overrides `check_logits`.
    `keras_calibration.testing.check_head` checks it.

    Args:
        dtype: Dtype or dtype policy; half precision becomes float32.
        **kwargs: Keyword arguments of every Keras layer (`name`, `trainable`).

    Attributes:
        fit_summary: The `FitSummary` of the last fit, else None. It is saved with the weights.
        histogram: For a head with `update`, the sums of the rows of all fits and updates.
        posterior: For a built head with intervals, the `Posterior` of the last fit; else None.
        effect_names: The features whose effects on the logit `effects(features)` returns.
        draws_by_chance: Whether `fitted` draws folds or batches; a count of 2 is then two rows.

    Call arguments:
        logits: Uncalibrated logits (batch,) or (batch, 1), or class logits (batch, K).
        features: A mapping of feature names to tensors with `batch` rows.

    Raises:
        ValueError: If called on logits of a shape that the head does not accept.

    Example:
        >>> from keras_calibration.layers import BiasCorrection
        >>> @keras.saving.register_keras_serializable(package="my_package")
        ... class MobileOffset(Head):
        ...     '''An offset for the rows of mobile devices.'''
        ...     @property
        ...     def feature_names(self):
        ...         return ("is_mobile",)
        ...
        ...     def build(self, logits_shape=None, features_shape=None):
        ...         self.offset = self.add_weight(shape=(), initializer="zeros")
        ...
        ...     def call(self, logits, features=None):
        ...         is_mobile = keras.ops.cast(features["is_mobile"], self.compute_dtype)
        ...         columns = [keras.ops.reshape(part, (-1, 1)) for part in (logits, is_mobile)]
        ...         return columns[0] + self.offset * columns[1]
        ...
        ...     def fitted(self, rows, settings, start=None):
        ...         mobile = rows.take(rows.features["is_mobile"].reshape(-1) == 1)
        ...         bias = BiasCorrection().fitted(mobile, settings).weights["_bias"]
        ...         return self.fit_of(rows, {"offset": bias})
        >>> head = MobileOffset()
        >>> features = {"is_mobile": np.array([0, 0, 1, 1, 1, 1])}
        >>> print(head.fit(np.zeros(6), [0, 1, 0, 0, 0, 1], features))
        The head is fitted, without a comparison on new rows.
        Log loss on the rows of the fit: 0.69315 before, 0.60594 with the fit (-0.08721). ...
    """

    posterior: Posterior | None = None
    effect_names: tuple[str, ...] = ()
    draws_by_chance = False

    def __init__(self, *, dtype: str | keras.DTypePolicy | None = None, **kwargs: Any) -> None:
        super().__init__(dtype=calibration_dtype(dtype), **kwargs)
        self.fit_summary: FitSummary | None = None
        self.histogram: LogitHistogram | None = None
        self._fitted_weights: str | None = None

    def __call__(self, logits: Tensor, features: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """Calls the layer; `features` may also hold columns of a data frame, or be one."""
        # Check first: Keras would broadcast other shapes, and round large ids to float32.
        if (shape := getattr(logits, "shape", None)) is not None:
            self.check_logits(shape)
        names = self.feature_names
        if names == () or (features is None and names is None):
            return super().__call__(logits, *args, **kwargs)
        columns = called_features(features, names, self.reads(), type(self).__name__)
        if isinstance(columns, Mapping):
            check_same_rows(shape, columns, type(self).__name__)
        return super().__call__(logits, columns, *args, **kwargs)

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        """As `keras.layers.Layer.add_weight`."""
        with throwaway_layers():
            return super().add_weight(*args, **kwargs)

    def ensure_built(self, logits_shape: Shape = (None, 1), features_shape: Any = None) -> None:
        """Creates the weights, as a call with these shapes would, unless they exist."""
        if not self.built:
            self.build(logits_shape, *(() if self.feature_names == () else (features_shape,)))

    def _read_value(self, name: str) -> np.ndarray:
        """A copy of the weight in an attribute; builds the layer."""
        self.ensure_built()
        return np.asarray(getattr(self, name)).copy()

    # Methods, not properties: Keras saves every layer that it finds in an attribute of a layer.
    def parts(self) -> Sequence[Head]:
        """The heads inside this one. It takes from them what it does not define itself."""
        return ()

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The features that the head reads; None if unknown, in which case it gets all features."""
        names = [part.feature_names for part in self.parts()]
        unique = dict.fromkeys(name for of_part in names for name in of_part or ())
        return None if None in names else tuple(unique)

    def reads(self) -> Reads:
        """Which of the features are fields, and which are numeric columns; others may be both."""
        return sum((part.reads() for part in self.parts()), Reads())

    def check_logits(self, shape: Shape) -> None:
        """Raises for logits of a shape that the head, or a part of it, does not accept."""
        if self.parts():
            check_columns(shape, type(self).__name__)
        else:
            check_column(shape, type(self).__name__, "logits")
        for part in self.parts():
            part.check_logits(shape)

    def curve(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Knots and values of the head's curve of the logit; None if it has none."""
        return next((c for part in self.parts() if (c := part.curve()) is not None), None)

    @property
    def follows_time(self) -> bool:
        """Whether a direct fit needs the times of the rows."""
        return any(part.follows_time for part in self.parts())

    def has_direct_fit(self) -> bool:
        """Whether the head, with its parts, defines `fitted`."""
        is_defined = type(self).fitted is not Head.fitted
        return is_defined and all(part.has_direct_fit() for part in self.parts())

    def level(self) -> Level | None:
        """The level over time of the last fit; None without time, and before a fit."""
        return next((level for part in self.parts() if (level := part.level()) is not None), None)

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike | None = None,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Sets up state from rows like those of `fit`, before a model is trained by gradient.

        By default, it adapts the parts. A direct fit does not need it.
        """
        for part in self.parts():
            part.adapt(logits, labels, features, sample_weight)

    @np.errstate(under="ignore")
    def fit(
        self,
        logits: ArrayLike | str,
        labels: ArrayLike | str,
        features: Mapping[str, ArrayLike] | None = None,
        sample_weight: ArrayLike | str | None = None,
        *,
        time: ArrayLike | str | None = None,
        from_logits: bool = True,
        weights_are: str = "importance",
        settings: FitSettings | None = None,
        verbose: int = 0,
    ) -> FitSummary:
        """Fits the head to labelled rows by its direct fit; replaces any earlier fit.

        The fit is deterministic: it depends only on the rows and on the seeds of `settings`.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1), finite; class logits (n, K).
            labels: Labels in [0, 1] (n,) or (n, 1), of both classes. For class logits: class
                numbers (n,) or (n, 1), or one-hot or soft labels (n, K).
            features: A mapping of feature names to arrays with n rows, or a data frame. Names of
                its columns may stand for the logits, labels and weights.
            sample_weight: Sample weights (n,) or (n, 1). Rows of weight 0 are ignored.
            time: For a head with `follows_time`: the time of each row (n,), numbers or dates; the
                name of a column of `features`; or `"order"`, if the rows are in order of time.
            from_logits: Whether `logits` are logits. Pass False for probabilities, also of classes.
                (The head is always called on logits.) An exact 0 or 1 counts as a logit of ±36.7:
                smooth votes, (k + ½) / (V + 1).
            weights_are: `"importance"`, known up to a common factor: the rows count as
                `(Σ w)² / Σ w²` rows of equal weight. Or `"counts"` of equal rows.
            settings: How to train the head's network, if it has one.
            verbose: 1 shows a progress bar while a network is trained.

        Returns:
            A `FitSummary`.

        Raises:
            ValueError: If the rows are invalid, not all classes have rows, the head does not accept
                logits of this shape, or it has no direct fit. The layer is then unchanged.

        Warns:
            UserWarning: If the logits look like probabilities or like labels; labels contradict
                probabilities of exactly 0 or 1; or values of a field are not in its vocabulary.
        """
        settings = settings_for([self], settings, verbose)
        of_rows = logits, labels, sample_weight, features, time, None, settings.folds
        rows = rows_to_fit(self, Given(*of_rows, from_logits, weights_are))
        # Nothing changes before `assign_all`, so an error leaves the head as it was.
        fit = fit_to(self, rows, settings)
        warn_of_unknown(self, rows, fit)
        build_for(self, rows)
        assign_all([(self, fit)])
        return fit.summary

    def fitted(self, rows: Rows, settings: FitSettings, start: Fit | None = None) -> Fit:
        """The direct fit to checked rows, as a value: the head stays as it is.

        Args:
            rows: They have `logits`, `labels` and `row_weights` (n,), float64, of classes (n, K);
                and `features`, name → array with n rows, with each of `feature_names`.
            settings: How to train a network, if there is one.
            start: A fit of this head to all rows, if `rows` are a part of them. A fit may start
                there to be faster, as cross-fitting does; its result must be nearly the same.

        Returns:
            A `Fit`, for example that of `fit_of`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `fitted`.")

    def fit_of(
        self,
        rows: Rows,
        weights: Mapping[str, ArrayLike],
        parts: Sequence[Fit] = (),
        num_iterations: int = 1,
        converged: bool = True,
    ) -> Fit:
        """A fit for `fitted` to return, which predicts by the call of the head with these weights.

        Args:
            rows: The rows of the fit.
            weights: Name of an attribute that holds a weight, or a layer → its value or values.
            parts: The fits of the heads in `parts()`, if there are any.
            num_iterations: Number of steps of the fit; 0 if it has a closed form.
            converged: Whether the optimum was reached.
        """
        build_for(self, rows)
        values = values_of(self, weights, parts)

        def logits(rows: Rows) -> np.ndarray:
            # The call reads these values; the variables keep theirs.
            with keras.StatelessScope(state_mapping=values):
                return head_logits(self, rows.logits, rows.features)

        summary = FitSummary.of(rows, logits(rows), num_iterations, converged)
        return Fit(summary, logits, weights, tuple(parts))

    def assign(self, fit: Fit) -> None:
        """Gives the head, with its parts, the weights and the record of a fit."""
        if fit.weights is None:
            return
        self.ensure_built()
        for part, inner in zip(self.parts(), fit.parts, strict=True):
            part.assign(inner)
        for variable, value in own_values(self, fit.weights):
            variable.assign(value)
        # After the weights, because both records hold a checksum of them.
        if self.posterior is not None:
            self.posterior.keep(fit.posterior)
        self.histogram = fit.histogram
        self.fit_summary = fit.summary
        # If training changes the weights later, their hash no longer fits: the summary is void.
        self._fitted_weights = hash_of_weights(self)

    @np.errstate(under="ignore")
    def interval(
        self,
        logits: ArrayLike,
        features: Mapping[str, ArrayLike] | None = None,
        *,
        level: float = 0.95,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Computes an interval of the calibrated probability of each row.

        The interval is `σ(η ± z s)`: the calibrated logit η has a normal posterior with standard
        deviation s, in the Laplace approximation of the last direct fit. It is an interval of the
        probability, not of the label. It assumes that the rows of the fit are independent and
        resemble those to come. After a fit with unequal importances, there is none.

        Args:
            logits: Uncalibrated logits (n,) or (n, 1).
            features: A mapping of feature names to arrays with n rows.
            level: Posterior probability of the interval, in (0, 1).

        Returns:
            Lower and upper probabilities, float64, in the shape of the output; NaN for NaN.

        Raises:
            ValueError: If the layer has no interval, was not fitted by its direct fit, was fitted
                with unequal importances, or changed after the fit; or if `level` is out of range.

        Example:
            >>> from keras_calibration.layers import BiasCorrection
            >>> layer = BiasCorrection()
            >>> summary = layer.fit(np.zeros(100), np.arange(100) < 20)
            >>> [bound.round(3) for bound in layer.interval([0.0])]  # about 20 of 100
            [array([0.133]), array([0.29])]
        """
        confidence_level("level", level)
        values: np.ndarray = np.atleast_1d(logits)
        self.check_logits(values.shape)
        columns = columns_of(features, wanted_by(self, False), sizes={"logits": len(values)})
        return bounds_of(self, values, columns, level)

    def logit_standard_deviation(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Posterior standard deviation of the calibrated logit, in the shape of the output.

        It is valid only after a direct fit. Raises a `ValueError` if the head has no interval.
        """
        raise ValueError(
            f"{type(self).__name__} has no interval, because its fit, or that of one of its parts, "
            f"gives no normal posterior. Received: {self!r}. Use FieldBias or a calibrator such as "
            'ILPS or PlattScaling; with `calibrate`, for example methods="field_bias".'
        )

    def finalize(self) -> None:
        """Adjusts the weights after training by gradient; by default, those of the parts."""
        for part in self.parts():
            part.finalize()

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Saves the weights, and the record of the last fit."""
        super().save_own_variables(store)
        save_fit(self, store)

    def load_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Loads the weights, and the record of the fit that gave them, if there is one."""
        saved = {name: store[name] for name in list(store.keys())}
        load_fit(self, saved)
        super().load_own_variables(saved)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates the layer from its `get_config`, with the layers that it holds."""
        made = keras.saving.deserialize_keras_object
        return super().from_config({n: v if n == "dtype" else made(v) for n, v in config.items()})

    def compute_output_shape(
        self, logits_shape: Shape, features_shape: Mapping[str, Shape] | None = None
    ) -> Shape:
        """`(batch, 1)` or `(batch, K)`; the shape of the logits without features and parts."""
        self.check_logits(logits_shape)
        if self.feature_names == () and not self.parts():
            return tuple(logits_shape)
        return (*logits_shape, 1)[:2]
