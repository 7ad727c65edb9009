"""CalibratedModel: a trained base model and a calibration head, as one Keras model."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.field_ids import field_readers
from keras_calibration.layers.fit_summary import utc_now
from keras_calibration.layers.neural_calibration import NeuralCalibration
from keras_calibration.models.base_logits import BaseLogits, symbolic_input
from keras_calibration.models.development_set import DevelopmentSet, as_inputs, read_development_set
from keras_calibration.models.field_metrics_model import FieldMetricsModel
from keras_calibration.ops.data_checks import check_rows

# Rows whose base logit is at hand come as a dictionary of just these two.
_LOGIT, _FEATURES = "base_logit", "head_features"
_LOGIT_BATCH_SIZE = 4096


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedModel(FieldMetricsModel):
    """A trained base model plus a calibration head: `q(l, x) = σ(head(l, x))`, l the base's logit.

    A Functional model on the base model's own inputs, whose output is the calibrated probability
    (batch, 1). The base model is frozen and in inference mode; only the head is trained. Inputs of
    the base model are the head's features, by name.

    `fit` differs from `keras.Model.fit` in this. The development set is read into memory, and the
    base model's logits of all its rows are computed once, before the first epoch (of the validation
    data too). Labels, weights and logits are checked, and what is wrong is refused before anything
    is changed. The first `fit` calls `head.adapt`, which places knots. Rows are shuffled every
    epoch, also those of a `tf.data.Dataset`. At the end `head.finalize` makes the curve monotone.

    Behaviour with unusual input: ids outside a field's vocabulary are the field's "other" value.
    Soft labels in [0, 1] are allowed. In `predict` and `evaluate`, a NaN logit of the base model
    gives a NaN probability.

    Args:
        base_model: A trained Functional or Sequential Keras model with one sigmoid or logit output.
            It is set to `trainable=False`.
        head: A layer called as `head(logits, features)`, `NeuralCalibration` for example, or a
            calibrator of the logit alone, `ILPS()` for example.
        base_output: `"probability"`, `"logit"`, or `"auto"`: told from the base's last layer.
        **kwargs: What every Keras model takes (`name`).

    Attributes:
        report: What `calibrate` found when it made the model, else None. It is not saved.
        fitted_at: When `fit` last ended, in UTC, else None. It is not saved.

    Raises:
        ValueError: If the base model cannot be calibrated as it is, or the head reads a feature
            that the base model does not take; in `fit`, if there is nothing to fit on: no rows, one
            class only, labels outside [0, 1], logits that are not finite, bad weights.

    Example:
        >>> from keras_calibration.layers import ILPS, FieldNetwork
        >>> rng = np.random.default_rng(0)
        >>> x = {"site": rng.integers(0, 3, 400), "price": rng.normal(size=(400, 1))}
        >>> y = rng.random(400) < 0.3
        >>> inputs = {
        ...     "site": keras.Input((), dtype="int32", name="site"),
        ...     "price": keras.Input((1,), name="price"),
        ... }
        >>> base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
        >>> model = CalibratedModel(base, NeuralCalibration(ILPS(), FieldNetwork({"site": 3})))
        >>> model.compile(optimizer="adam")
        >>> history = model.fit(x, y, batch_size=100, epochs=2, verbose=0)
        >>> model.predict(x, verbose=0).shape
        (400, 1)

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 7 and 8.
    """

    def __init__(
        self,
        base_model: keras.Model,
        head: keras.layers.Layer,
        base_output: str = "auto",
        **kwargs: Any,
    ) -> None:
        base = BaseLogits(base_model, base_output, name="base")
        if isinstance(head, Calibrator):
            head = NeuralCalibration(head)
        names = getattr(head, "feature_names", None)
        inputs = keras.tree.map_structure(
            lambda tensor: keras.Input(
                batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name
            ),
            symbolic_input(base_model),
        )
        features = inputs_by_name(inputs, inputs)
        missing = [name for name in names or () if name not in features]
        if missing:
            raise ValueError(
                f"The head reads the features {list(names or ())}. Received: a base model with "
                f"the inputs {sorted(features)}, without {missing}. The calibrated model takes the "
                "base model's own inputs: give it these as further inputs, used or not."
            )
        logit = base(inputs)
        if names is not None:
            features = {name: features[name] for name in names}
        calibrated = head(logit, features)
        probability = keras.layers.Activation("sigmoid", dtype=head.dtype, name="probability")
        super().__init__(inputs=inputs, outputs=probability(calibrated), **kwargs)
        self.base = base
        self.head = head
        self.probability = probability
        self.report: Any = None
        self.fitted_at: str | None = None

    @property
    def base_model(self) -> keras.Model:
        """The base model, frozen."""
        return self.base.base_model

    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = "binary_crossentropy",
        *,
        field_metrics: Mapping[Any, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, with the log loss by default and with `field_metrics`.

        Args:
            optimizer: As for `keras.Model.compile`.
            loss: As for `keras.Model.compile`, on probabilities.
            field_metrics: Field name, or tuple of names for a cross → list of metrics with
                `update_state(..., field=ids)`. A field that the head looks up in a vocabulary is
                counted by the head's ids.
            **kwargs: Everything else that `keras.Model.compile` takes.
        """
        super().compile(optimizer=optimizer, loss=loss, field_metrics=field_metrics, **kwargs)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        *,
        validation_data: Any = None,
        sample_weight: Any = None,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Trains the head on the development set.

        Args:
            x: Inputs (arrays by name, with `y`), or a finite data set of batches `(x, y)` or
                `(x, y, sample_weight)`.
            y: Labels in [0, 1] (n,) or (n, 1), where `x` is arrays.
            batch_size: Rows of a batch; by default the data set's own, or 32.
            epochs: Number of passes over the development set.
            verbose: As for `keras.Model.fit`.
            callbacks: As for `keras.Model.fit`.
            validation_data: Held-out rows, `(x, y)`, `(x, y, sample_weight)` or a data set.
            sample_weight: Weights (n,), where `x` is arrays.
            steps_per_epoch: Number of batches to read from a data set, or of an epoch over arrays;
                None for all.
            validation_steps: The same for the validation data.
            **kwargs: Everything else that `keras.Model.fit` takes.

        Returns:
            The `History`.
        """
        self._assert_compile_called("fit")
        logit_model = keras.Model(self.input, self.base.output)
        rows = read_development_set(x, y, sample_weight, steps_per_epoch, self.input)
        arguments = self._with_logits(logit_model, rows, verbose, both_classes=True)
        if rows.batch_size is None:
            arguments["steps_per_epoch"] = steps_per_epoch
        if validation_data is not None:
            is_arrays = isinstance(validation_data, tuple | list)
            parts = validation_data if is_arrays else (validation_data,)
            val_x, val_y, val_weight = (*parts, None, None)[:3]
            held_out = read_development_set(val_x, val_y, val_weight, validation_steps, self.input)
            held_out_arguments = self._with_logits(logit_model, held_out, verbose)
            arguments["validation_data"] = tuple(held_out_arguments.values())
            if held_out.batch_size is None:
                arguments["validation_steps"] = validation_steps
        if not getattr(self.head, "is_adapted", True):
            logits, features = arguments["x"][_LOGIT], arguments["x"][_FEATURES]
            self.head.adapt(logits, features, rows.labels, rows.weights)
        history = super().fit(
            **arguments,
            batch_size=batch_size or rows.batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            **kwargs,
        )
        if hasattr(self.head, "finalize"):
            self.head.finalize()
        self.fitted_at = utc_now()
        return history

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        """As `keras.Model.predict`; `x` may be a data frame, or hold columns of one."""
        return super().predict(as_inputs(x, self.input), *args, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`; `x` may be a data frame, or hold columns of one."""
        is_cached = isinstance(x, Mapping) and set(x) == {_LOGIT, _FEATURES}
        x = x if x is None or is_cached else as_inputs(x, self.input)
        return super().evaluate(x, y, *args, **kwargs)

    def base_logits(self, x: Any, verbose: Any = 0) -> np.ndarray:
        """The base model's logits of many rows.

        Args:
            x: Inputs: arrays, or a data set of batches.
            verbose: As for `keras.Model.predict`.

        Returns:
            Logits (n, 1), float32.
        """
        logit_model = keras.Model(self.input, self.base.output)
        x = as_inputs(x, self.input)
        return logit_model.predict(x, batch_size=_LOGIT_BATCH_SIZE, verbose=verbose)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Calibrated probabilities (batch, 1)."""
        if isinstance(inputs, Mapping) and set(inputs) == {_LOGIT, _FEATURES}:
            return self.probability(self.head(inputs[_LOGIT], inputs[_FEATURES]))
        return super().call(self._expected_inputs(inputs), training=training, mask=mask)

    @property
    def input_spec(self) -> None:
        """None: `call` checks the inputs itself, for they come with and without base logits."""
        return None

    def field_ids(self, x: Any, field: str) -> Any:
        """The ids (n,) of a field of the input, as the head counts them where it has the field."""
        is_cached = isinstance(x, Mapping) and set(x) == {_LOGIT, _FEATURES}
        features = x[_FEATURES] if is_cached else inputs_by_name(x, self.input)
        for reader in field_readers(self.head):
            if field in {*reader.fields} & {*features}:
                return reader.field_ids(features, field)
        return super().field_ids(features, field)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            "base_model": keras.saving.serialize_keras_object(self.base_model),
            "head": keras.saving.serialize_keras_object(self.head),
            "base_output": self.base.base_output,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "CalibratedModel":
        """The model of a `get_config`."""
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("base_model", "head")
        }
        return cls(**{**config, **parts})

    def _with_logits(
        self, logit_model: Any, rows: DevelopmentSet, verbose: Any, both_classes: bool = False
    ) -> dict[str, Any]:
        """Arguments x, y, sample_weight of `fit`, the base logits computed and all checked."""
        inputs = self._expected_inputs(rows.inputs)
        logits = logit_model.predict(inputs, batch_size=_LOGIT_BATCH_SIZE, verbose=verbose)
        check_rows(logits, rows.labels, rows.weights, both_classes=both_classes)
        features = inputs_by_name(inputs, self.input)
        names = getattr(self.head, "feature_names", None)
        if names is not None:
            field_metrics = self._field_metrics
            fields = () if field_metrics is None else field_metrics.fields
            features = {k: v for k, v in features.items() if k in names or k in fields}
        # Keras would take labels (n,) for (n, 1) too; the package's own metrics see them alike.
        labels = np.asarray(rows.labels, "float32").reshape(-1, 1)
        weights = None if rows.weights is None else np.asarray(rows.weights, "float32").reshape(-1)
        return {"x": {_LOGIT: logits, _FEATURES: features}, "y": labels, "sample_weight": weights}

    def _expected_inputs(self, inputs: Any) -> Any:
        """The inputs that the model takes: others in a dictionary are left out, none is missing."""
        expected = self.input
        if not isinstance(expected, dict):
            return inputs
        is_by_name = isinstance(inputs, Mapping)
        missing = [name for name in expected if not is_by_name or name not in inputs]
        if missing:
            received = sorted(inputs) if is_by_name else type(inputs).__name__
            raise ValueError(
                f"The model takes a dictionary of the features {sorted(expected)}. "
                f"Received: {received}, without {sorted(missing)}. Pass every one of them."
            )
        return {name: inputs[name] for name in expected}


def inputs_by_name(inputs: Any, named: Any) -> dict[str, Any]:
    """Inputs as a dictionary: the keys of a dictionary, else the names of the Input tensors.

    Args:
        inputs: Inputs in the structure that the model takes.
        named: The symbolic inputs of the model, in the same structure.

    Returns:
        Name → input.
    """
    if isinstance(inputs, Mapping):
        return dict(inputs)
    names = [tensor.name for tensor in keras.tree.flatten(named)]
    return dict(zip(names, keras.tree.flatten(inputs), strict=True))
