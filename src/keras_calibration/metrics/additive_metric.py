"""AdditiveMetric: what all metrics of the package share, state that adds up."""

import functools
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops

from keras_calibration.ops.compensated import two_sum


class AdditiveMetric(keras.metrics.Metric):
    """Base of the metrics: sums over rows, of fixed size, exact past 2²⁴ rows on every backend.

    All state is sums, so that replicas, workers and shards merge by addition (`merge_state`); what
    is not linear happens in `result`. Sums are kept in float64 where the backend has it. Where it
    has not (JAX, unless `jax_enable_x64` is set) they are compensated pairs of float32: plain
    float32 stops counting at 16,777,216 rows.

    A subclass creates its sums in `__init__` with `add_sum`, adds to them in `update_state` and
    reads them in `result`.

    Args:
        name: Name of the metric and key of the logs.
        dtype: Dtype of state and result, float32 or float64; float64 by default where the backend
            has it.

    Raises:
        ValueError: If the dtype is another one.
    """

    # Lets `EarlyStopping(mode="auto")` know that lower is better.
    _direction = "down"

    def __init__(self, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype or accumulator_dtype())
        if self.dtype not in ("float32", "float64"):
            raise ValueError(
                "Argument `dtype` must be 'float32' or 'float64': sums in half precision stop at "
                f"some hundred rows. Received: dtype={dtype!r}."
            )
        # JAX makes float32 variables of float64 ones, unless told otherwise.
        if self.dtype == "float64" and accumulator_dtype() == "float32":
            self._dtype_policy = keras.dtype_policies.get("float32")
            self._dtype = "float32"
        self._running_sums: list[RunningSum] = []

    def add_sum(self, shape: tuple[int, ...], name: str) -> "RunningSum":
        """A sum over rows, 0 at the start.

        Args:
            shape: Its shape.
            name: Name of its variable.
        """
        self._running_sums.append(RunningSum(self, shape, name))
        return self._running_sums[-1]

    def merge_state(self, metrics: Iterable["AdditiveMetric"]) -> None:
        """Adds the rows that other metrics of the same configuration have seen.

        Args:
            metrics: Metrics of the same class and configuration: those of shards, for example.

        Raises:
            ValueError: If one is of another class or configuration; nothing is added then.
        """
        metrics = list(metrics)
        for metric in metrics:
            if type(metric) is not type(self) or _configuration(metric) != _configuration(self):
                raise ValueError(
                    "Only metrics of the same class and configuration merge. Received: "
                    f"{type(metric).__name__} with {_configuration(metric)}; expected "
                    f"{type(self).__name__} with {_configuration(self)}."
                )
        for metric in metrics:
            self._merge(metric)

    def _merge(self, other: "AdditiveMetric") -> None:
        for own_sum, other_sum in zip(self._running_sums, other._running_sums, strict=True):
            own_sum.merge(other_sum)
        merged = {id(part) for own_sum in self._running_sums for part in own_sum.variables}
        for own, theirs in zip(self._variables, other._variables, strict=True):
            if id(own) not in merged:
                own.assign_add(ops.convert_to_tensor(theirs))
        for own_metric, other_metric in zip(self._metrics, other._metrics, strict=True):
            own_metric._merge(other_metric)


def warns_of_nan(result: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A `result` method that says so where its value is NaN.

    Inside a compiled step, where the value is not known yet, nothing is said: Keras calls `result`
    once more at the end of every epoch and evaluation.

    Args:
        result: The method.

    Returns:
        A method that does the same and issues a `RuntimeWarning` where the value is NaN.
    """

    @functools.wraps(result)
    def told(metric: Any) -> Any:
        value = result(metric)
        try:
            is_nan = math.isnan(float(value))
        except TypeError:  # what a tensor without a value yet raises, on every backend
            is_nan = False
        if is_nan:
            warnings.warn(
                f"The {metric.name} is NaN: the rows since `reset_state` do not tell it. Either "
                "there are none of a weight above 0, or of one class only where both are needed, "
                "or a label, weight or prediction is one that the documentation of "
                f"{type(metric).__name__} rules out (most often logits without from_logits=True).",
                RuntimeWarning,
                stacklevel=2,
            )
        return value

    return told


class RunningSum:
    """A sum over rows among the variables of a metric.

    Args:
        metric: The metric.
        shape: Shape of the sum.
        name: Name of its variable.
    """

    def __init__(self, metric: AdditiveMetric, shape: tuple[int, ...], name: str) -> None:
        self._total = metric.add_variable(shape, "zeros", dtype=metric.dtype, name=name)
        self._rest = None
        if metric.dtype == "float32":
            self._rest = metric.add_variable(
                shape, "zeros", dtype=metric.dtype, name=f"{name}_rest"
            )

    def add(self, values: Any) -> None:
        """Adds a batch's sum."""
        if self._rest is None:
            self._total.assign_add(values)
            return
        total, rest = two_sum(ops.convert_to_tensor(self._total), values)
        self._total.assign(total)
        self._rest.assign_add(rest)

    @property
    def variables(self) -> list[Any]:
        """The total, and in float32 what rounding left out of it."""
        return [self._total] if self._rest is None else [self._total, self._rest]

    def merge(self, other: "RunningSum") -> None:
        """Adds the rows of another sum, with what rounding left out of both."""
        self.add(ops.convert_to_tensor(other._total))
        if self._rest is not None and other._rest is not None:
            self._rest.assign_add(ops.convert_to_tensor(other._rest))

    def value(self) -> Any:
        """The sum, a tensor."""
        total = ops.convert_to_tensor(self._total)
        return total if self._rest is None else total + ops.convert_to_tensor(self._rest)


def accumulator_dtype() -> str:
    """The dtype of metric state: float64 where the backend has it, else float32.

    Example:
        >>> accumulator_dtype()
        'float64'
    """
    if keras.backend.backend() != "jax":
        return "float64"
    import jax

    return "float64" if jax.config.read("jax_enable_x64") else "float32"


def _configuration(metric: AdditiveMetric) -> dict[str, Any]:
    return {key: value for key, value in metric.get_config().items() if key != "name"}
