"""FieldMetricsModel: a Keras model whose metrics can read a field of the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_calibration._graph.outputs import symbolic_input
from keras_calibration._rows.reader import as_inputs
from keras_calibration._typing import Data, Inputs, Tensor
from keras_calibration.metrics.field_metrics import FieldMetrics, MetricsByField


def _pick_one_output(y: Any, y_pred: Any, sample_weight: Any) -> list[Tensor | None]:
    """Labels, predictions and weights of a model with one output, also in a dictionary or list."""
    if (number := len(keras.tree.flatten(y_pred))) > 1:
        raise ValueError(
            "Argument `field_metrics` of `compile` is for models with one output. Received: a "
            f"model with {number}. Evaluate a FieldMetricsModel with one of them."
        )
    return [
        part if part is None else keras.tree.flatten(part)[0] for part in (y, y_pred, sample_weight)
    ]


@keras.saving.register_keras_serializable(package="keras_calibration")
class FieldMetricsModel(keras.Model):
    """A Keras model that passes a feature of the input to its field metrics.

    Keras passes labels and predictions to a metric, but no features. This model adds an argument to
    `compile`, `field_metrics={field: [metric]}`. Each metric gets the feature of that name as
    `field=`. Its result appears in the logs of `fit` and `evaluate` as `{field}_{metric}`
    (`val_…` for validation data). Results are a dictionary, so `EarlyStopping` on one of its keys
    needs `mode="min"`.

    Field metrics always use the `sample_weight`. They use `class_weight` in the logs of training,
    where Keras turns it into sample weights, but not for validation data or in `evaluate`.

    Build the model as a Functional model on a dictionary of inputs, with one output. Saving it
    also saves the field metrics.

    Args:
        *args: As for `keras.Model`: inputs and outputs.
        **kwargs: As for `keras.Model`.

    Raises:
        ValueError: In `compile`, if `field_metrics` is not as described above; in `fit` and
            `evaluate`, if the input has no feature of that name, or the model several outputs.

    Example:
        >>> import numpy as np
        >>> from keras_calibration.metrics import FieldECE
        >>> inputs = {
        ...     "site": keras.Input((), dtype="int32", name="site"),
        ...     "price": keras.Input((1,), name="price"),
        ... }
        >>> output = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")(inputs["price"])
        >>> model = FieldMetricsModel(inputs, output)
        >>> model.compile(loss="binary_crossentropy", field_metrics={"site": [FieldECE(2)]})
        >>> x = {"site": np.array([0, 0, 1, 1]), "price": np.ones((4, 1))}
        >>> scores = model.evaluate(x, np.array([1, 0, 1, 1]), return_dict=True, verbose=0)
        >>> round(scores["site_field_ece"], 4)
        0.25
    """

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "rmsprop",
        loss: Any = None,
        *,
        field_metrics: MetricsByField | None = None,
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, with `field_metrics`.

        Args:
            optimizer: As for `keras.Model.compile`.
            loss: As for `keras.Model.compile`.
            field_metrics: Field name → list of metrics with `update_state(..., field=ids)`. A
                field is an input of the model, also one that no layer reads, such as ids of pairs.
            **kwargs: Other arguments of `keras.Model.compile`.
        """
        # Past Keras' `__setattr__`, which tracks metrics and would keep those of an earlier
        # `compile`.
        object.__setattr__(
            self, "_field_metrics", FieldMetrics(field_metrics) if field_metrics else None
        )
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def fit(self, x: Data = None, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """As `keras.Model.fit`; `x` may also be a data frame, or hold its columns."""
        held_out = kwargs.get("validation_data")
        if isinstance(held_out, tuple | list):
            kwargs["validation_data"] = (self._read_inputs(held_out[0]), *held_out[1:])
        return super().fit(self._read_inputs(x), *args, **kwargs)

    def evaluate(self, x: Data = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`; `x` may also be a data frame, or hold its columns."""
        return super().evaluate(self._read_inputs(x), *args, **kwargs)

    def predict(self, x: Data, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.predict`; `x` may also be a data frame, or hold its columns."""
        return super().predict(self._read_inputs(x), *args, **kwargs)

    def _read_inputs(self, x: Data) -> Data:
        """Arrays and tables as the model reads them, exactly.

        Keras would convert whole numbers in float64 to float32, which merges ids beyond 2²⁴.
        """
        inputs = symbolic_input(self)
        # Keras matches a list to a dictionary of inputs by position, so it has no names to read by.
        by_position = isinstance(inputs, Mapping) and isinstance(x, list | tuple)
        if x is None or inputs is None or by_position:
            return x
        return as_inputs(x, inputs, self._ids)

    @property
    def _ids(self) -> set[str]:
        """Names of the inputs that must hold exact ids, also where an input takes floats."""
        return set()

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """All metrics of the model; the field metrics come last, as one metric."""
        field_metrics = getattr(self, "_field_metrics", None)
        return super().metrics + ([] if field_metrics is None else [field_metrics])

    def compute_metrics(
        self, x: Inputs, y: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Updates all metrics and returns their results."""
        if self._field_metrics is not None:
            field_ids = {field: self.field_ids(x, field) for field in self._field_metrics.by_field}
            # Keras calls this method at each step of training and evaluation, with x: the place
            # where a metric can get a feature.
            self._field_metrics.update_state(*_pick_one_output(y, y_pred, sample_weight), field_ids)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def field_ids(self, x: Inputs, field: str) -> Tensor:
        """Ids (n,) of a field: the feature of that name in the input; raises without it."""
        if not isinstance(x, Mapping) or field not in x:
            received = sorted(x) if isinstance(x, Mapping) else type(x).__name__
            raise ValueError(
                f"Argument `field_metrics` must name inputs of the model. Received: {field!r}, and "
                f"{received} as input. Add an Input of this name, which no layer needs to read."
            )
        return ops.reshape(x[field], (-1,))

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile`, serialized, including the field metrics."""
        config = super().get_compile_config()
        optimizer = getattr(self, "optimizer", None)
        if self.built and optimizer is not None and not optimizer.built:
            # The optimizer of a loaded model is built, and Keras warns if the saved one was not.
            optimizer.build(self.trainable_variables)
        if config and self._field_metrics is not None:
            config["field_metrics"] = keras.saving.serialize_keras_object(
                self._field_metrics.by_field
            )
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model from its `get_compile_config`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and getattr(self, "optimizer", None) is not None:
            self.optimizer.build(self.trainable_variables)
