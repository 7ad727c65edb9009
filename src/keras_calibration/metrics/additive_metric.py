"""AdditiveMetric: the base class of all metrics, whose state is a set of sums over rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from calibration_records._check import truth
from calibration_records._warn import warn
from keras_calibration._keras import throwaway_layers
from keras_calibration._ops.compensated import two_sum
from keras_calibration._rows.metric_rows import accumulator_dtype, scale_sums
from keras_calibration._typing import Tensor
from keras_calibration.metrics.log_sums import LabelSums, LogitMoments

# With fewer rows than this, all logits may be in [0, 1] by chance.
_MANY_ROWS = 100


class AdditiveMetric(keras.metrics.Metric):
    """Base class of the metrics: sums over rows, of fixed size and exact for any number of rows.

    Every metric of this package ignores rows of weight 0, whatever their label and prediction. A
    common factor of all weights does not change the result.

    All state is sums, so replicas, workers and shards merge by addition (`merge_state`). Everything
    that is not linear happens in `result`. Sums are float64 where the backend supports it. On JAX
    without `jax_enable_x64`, they are compensated pairs of float32: a plain float32 sum stops
    counting at 16,777,216 rows.

    `result` warns if it is NaN, and if `from_logits=True` but the predictions are probabilities:
    all are in [0, 1], and closer to the labels than their sigmoid. Keras calls it outside of the
    compiled step at the end of every epoch and evaluation.

    A subclass creates its sums in `__init__` with `add_sum`, adds to them in `add_rows` and reads
    them in `result`.

    Args:
        name: Name of the metric, and its key in the logs.
        dtype: Dtype of state and result, `"float32"` or `"float64"`. The default is float64 where
            the backend supports it.
        **arguments: The other arguments of the subclass' constructor, plain Python values: they
            become attributes, and `get_config` returns them.

    Raises:
        ValueError: If `dtype` is neither of the two.

    Example:
        >>> class PositiveRate(AdditiveMetric):
        ...     def __init__(self, name="positive_rate", dtype=None):
        ...         super().__init__(name, dtype)
        ...         self._totals = self.add_sum((2,), name="totals")
        ...
        ...     def add_rows(self, y_true, y_pred, sample_weight):
        ...         labels = ops.cast(y_true, self.dtype)
        ...         self._totals.add(ops.stack([ops.sum(labels), ops.sum(ops.ones_like(labels))]))
        ...
        ...     def result(self):
        ...         totals = self._totals.value()
        ...         return totals[0] / totals[1]
        >>> metric = PositiveRate()
        >>> metric.update_state([1, 0, 0, 1], [0.5, 0.5, 0.5, 0.5])
        >>> float(metric.result())
        0.5
    """

    # Tells `EarlyStopping(mode="auto")` that lower is better.
    _direction = "down"

    def __init__(self, name: str, dtype: str | None = None, **arguments: Any) -> None:
        if dtype in (None, "float64"):
            dtype = accumulator_dtype()  # JAX has float64 only with `jax_enable_x64`
        super().__init__(name=name, dtype=dtype)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(
                "Argument `dtype` must be 'float32' or 'float64': a sum in half precision stops "
                f"counting after a few hundred rows. Received: dtype={dtype!r}."
            )
        self._running_sums: list[RunningSum] = []
        self._argument_names = tuple(arguments)
        for argument, value in arguments.items():
            # Of all metrics here: any text would count as True.
            setattr(self, argument, truth(argument, value) if argument == "from_logits" else value)
        self._scale = (
            self.add_variable((4,), "zeros", dtype=self.dtype, name="scale")
            if arguments.get("from_logits")
            else None
        )

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Adds rows.

        Args:
            y_true: Labels in [0, 1], in regression any real numbers, shape `(n,)` or `(n, 1)`. With
                K classes, their numbers, or shares `(n, K)` with sum 1.
            y_pred: Probabilities, or logits with `from_logits=True`, in regression predictions,
                shape `(n,)` or `(n, 1)`; with K classes `(n, K)`.
            sample_weight: Non-negative weights, shape `(n,)` or `(n, 1)`, or None.
        """
        self.add_rows(y_true, y_pred, sample_weight)
        self._add_scale(y_true, y_pred, sample_weight)

    def _add_scale(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds the sums by which `result` recognizes probabilities that were passed as logits."""
        if self._scale is not None:
            self._scale.assign_add(scale_sums(y_true, y_pred, sample_weight, self.dtype))

    def add_rows(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None) -> None:
        """Adds rows to the sums, with the arguments of `update_state`. A subclass defines it."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        values = {name: getattr(self, name) for name in (*self._argument_names, "name", "dtype")}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def log_sums(self) -> dict[str, LabelSums | LogitMoments]:
        """The sums of a scored log that make up `sum_shapes`, for `scoring.score`.

        Without any, `score` reads all rows of the log. A subclass that overrides `add_rows` or
        `update_state` has other sums than its base class, and must override this method too.
        """
        return {}

    @property
    def has_log_sums(self) -> bool:
        """Whether `log_sums` belongs to the metric's `update_state` and `add_rows`."""

        def defined_by(name: str) -> type:
            return next(base for base in type(self).__mro__ if name in vars(base))

        # A subclass that overrides one of these without `log_sums` adds other sums than the log
        # has.
        others = map(defined_by, ("update_state", "add_rows"))
        return all(issubclass(defined_by("log_sums"), b) for b in others) and bool(self.log_sums())

    def add_variable(self, *args: Any, **kwargs: Any) -> keras.Variable:
        """As `keras.metrics.Metric.add_variable`."""
        with throwaway_layers():
            return super().add_variable(*args, **kwargs)

    def add_sum(self, shape: tuple[int, ...], name: str) -> RunningSum:
        """Creates a sum over rows, 0 at the start.

        Args:
            shape: Shape of the sum.
            name: Name of its variable.
        """
        self._running_sums.append(RunningSum(self, shape, name))
        return self._running_sums[-1]

    def add_sums(self, sums: Mapping[str, ArrayLike]) -> None:
        """Adds sums over rows that were computed elsewhere, for example by a database.

        The result then covers these rows and those of `update_state`.

        Args:
            sums: Name → sums, with the names and shapes of `sum_shapes`.

        Raises:
            ValueError: If names or shapes differ. Nothing is added then.

        Example:
            >>> from keras_calibration.metrics import LogLoss
            >>> metric = LogLoss()
            >>> metric.sum_shapes
            {'loss_and_weight': (2,)}
            >>> metric.add_sums({"loss_and_weight": [3.0, 10.0]})  # Σ w loss and Σ w
            >>> float(metric.result())
            0.3
        """
        arrays = {name: np.asarray(values, self.dtype) for name, values in sums.items()}
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != self.sum_shapes:
            raise ValueError(
                f"Argument `sums` of {type(self).__name__} must hold arrays of the shapes "
                f"{self.sum_shapes}. Received: {shapes}."
            )
        for total in self._running_sums:
            total.add(ops.convert_to_tensor(arrays[total.name]))

    def add_row_count(self, num_rows: Tensor | int) -> None:
        """Counts rows whose sums were computed elsewhere, where a metric numbers its rows."""

    @property
    def sum_shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of each sum that `add_sums` takes."""
        return {total.name: total.shape for total in self._running_sums}

    def merge_state(self, metrics: Iterable[AdditiveMetric]) -> None:
        """Adds the rows that other metrics of the same configuration have seen.

        Args:
            metrics: Metrics of the same class and configuration, for example of other shards.

        Raises:
            ValueError: If a metric has another class or configuration. Nothing is added then.
        """
        metrics = list(metrics)
        expected = _describe(self)
        if others := [metric for metric in metrics if _describe(metric) != expected]:
            raise ValueError(
                "Argument `metrics` must hold metrics of the same class and configuration, "
                f"{expected}. Received: {_describe(others[0])}."
            )
        for metric in metrics:
            self._merge(metric)

    def _merge(self, other: AdditiveMetric) -> None:
        # Running sums merge by two-sum, below; all other variables, such as the number of rows, add
        # up.
        for ours, theirs in zip(self._variables, other._variables, strict=True):
            if not any(ours is part for total in self._running_sums for part in total.variables):
                ours.assign_add(ops.convert_to_tensor(theirs))
        parts = (*self._running_sums, *self._metrics), (*other._running_sums, *other._metrics)
        for our_part, their_part in zip(*parts, strict=True):
            our_part._merge(their_part)


def checked_result(
    result: Callable[[AdditiveMetric], Tensor],
) -> Callable[[AdditiveMetric], Tensor]:
    """Decorates a `result` method so that it warns if its value is NaN, or of the wrong scale.

    A compiled step gives no warning, because it does not know the value yet. Keras calls `result`
    again at the end of every epoch and evaluation.
    """

    @functools.wraps(result)
    def with_one_result(metric: AdditiveMetric) -> Tensor:
        value = result(metric)
        try:
            # AutoGraph would make an operation of `float(value)`, which raises nothing.
            is_nan = math.isnan(value)
        except TypeError:  # raised on every backend by a tensor that has no value yet
            return value
        if is_nan:
            warn(
                f"The {metric.name} is NaN: it is undefined for the rows seen so far. Possible "
                "reasons: a label, weight or prediction is outside its range (most often logits "
                "without from_logits=True); there are no rows with a positive weight; all labels "
                "are of one class and both are needed; a label is missing (drop the row, or give "
                "it weight 0); an id of a field is neither below num_values nor -1 ('other'); "
                "or the bias is too large for the guaranteed accuracy (it moves logits from beyond "
                f"±88 close to 0). See the documentation of {type(metric).__name__}."
            )
        elif metric._scale is not None:
            _warn_of_probabilities(metric.name, *np.asarray(metric._scale).tolist())
        return value

    return with_one_result


def _warn_of_probabilities(
    name: str, num_rows: float, num_outside: float, as_given: float, as_logits: float
) -> None:
    """Warns if predictions that were passed as logits are probabilities, by `scale_sums`."""
    if num_rows >= _MANY_ROWS and not num_outside and as_given < as_logits:
        warn(
            f"The predictions of {name} look like probabilities, although from_logits=True: all "
            "are in [0, 1], and they are closer to the labels than the sigmoid or softmax of them. "
            "The result is then wrong. Create the metric without from_logits=True."
        )


class RunningSum:
    """A sum over rows, kept in one variable of a metric (float64) or two (float32, compensated)."""

    def __init__(self, metric: AdditiveMetric, shape: tuple[int, ...], name: str) -> None:
        self.name, self.shape = name, shape
        self._total = metric.add_variable(shape, "zeros", dtype=metric.dtype, name=name)
        self._rest = (
            metric.add_variable(shape, "zeros", dtype="float32", name=f"{name}_rest")
            if metric.dtype == "float32"
            else None
        )
        # The total and, in float32, its accumulated rounding error.
        self.variables = [part for part in (self._total, self._rest) if part is not None]

    def add(self, values: Tensor) -> None:
        """Adds the sum of a batch."""
        if self._rest is None:
            self._total.assign_add(values)
            return
        # Compensated summation: the second variable collects what the first one has rounded off.
        total, rest = two_sum(ops.convert_to_tensor(self._total), values)
        self._total.assign(total)
        self._rest.assign_add(rest)

    def _merge(self, other: RunningSum) -> None:
        """Adds another sum, with the rounding errors of both."""
        self.add(ops.convert_to_tensor(other._total))
        if self._rest is not None and other._rest is not None:
            self._rest.assign_add(ops.convert_to_tensor(other._rest))

    def value(self) -> Tensor:
        """The sum, as a tensor."""
        total = ops.convert_to_tensor(self._total)
        return total if self._rest is None else total + ops.convert_to_tensor(self._rest)


def _describe(metric: keras.metrics.Metric) -> str:
    config = {key: value for key, value in metric.get_config().items() if key != "name"}
    return f"{type(metric).__name__} with {config}"
