"""CalibratedModel: a trained base model plus a calibration head, as one Keras model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from calibration_records._check import instance, known
from calibration_records._warn import warn
from keras_calibration._graph.base_logits import (
    BaseLogits,
    check_base_model,
    probability_of,
    serialized_base,
    trainable_flags_kept,
    with_all_outputs,
)
from keras_calibration._graph.head_in_model import find_head
from keras_calibration._graph.outputs import columns_by_path, symbolic_input, with_tensor_names
from keras_calibration._rows.inputs import (
    expected_inputs,
    free_name,
    layer_names,
    named_inputs,
)
from keras_calibration._typing import Data, Inputs, Tensor
from keras_calibration.layers.field_ids import ids_of_field, vocabulary_sizes
from keras_calibration.layers.head import Head
from keras_calibration.models.field_metrics_model import FieldMetricsModel

if TYPE_CHECKING:
    from keras_calibration.calibration.calibration_report import CalibrationReport


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedModel(FieldMetricsModel):
    """A trained base model plus a calibration head: `q(l, x) = σ(head(l, x))`, with base logit l.

    A Functional model on the inputs of the base model. Its output is the calibrated probability
    (batch, 1). The base model is frozen and runs in inference mode; only the head is trained. The
    head reads its features, by name, from the inputs of the base model: the input `id` in a
    dictionary `user` has the name `"user.id"`.

    For K classes, the base model returns K logits or their softmax, the head serves K logits, and
    the output is the softmax (batch, K). Labels are then class numbers (n,) or (n, 1), or
    one-hot or soft labels (n, K).

    If the base model has several outputs (a multi-task model), `calibrated_output` names the one
    to calibrate. This model returns only that one; `with_all_outputs` makes a model that returns
    the others too, and exports return them unchanged.

    `fit_head` fits the head directly, without `compile`. Training, evaluation and prediction are
    Keras' own. `fit` trains the head by gradient and leaves the base model frozen. Use it for a
    head without a direct fit (call `head.adapt` before, and `head.finalize` after). Compile the
    model with `"binary_crossentropy"`; for classes with `"sparse_categorical_crossentropy"`, or
    `"categorical_crossentropy"` for labels (n, K). Most other losses, and a `class_weight`, give
    probabilities that are not calibrated.

    The base model stays frozen while the calibrated model is in use. To train it again afterwards,
    set `base_model.trainable = True` (or the flags of single layers) and compile it. If the
    constructor raises, the base model is unchanged.

    Ids outside a field's vocabulary are the field's "other" value. A NaN logit of the base model
    gives a NaN probability, with a warning from `predict`. In `compile(field_metrics=…)`, see
    `FieldMetricsModel`, the metrics of a field that the head has use the head's ids, for example
    those of its lookup layer.

    To copy the model, use `keras.models.clone_model`, or `from_config(model.get_config())`, and
    then `set_weights`: like any Keras clone, it has new initial weights.

    Args:
        base_model: A trained Functional or Sequential Keras model with a sigmoid or logit output,
            or a softmax or logits of K classes. It is set to `trainable=False`.
        head: A `Head`, for example `NeuralCalibration(...)` or `ILPS()`; for classes one that
            returns K logits, for example `VectorScaling(K)`.
        base_output: What the base model returns: `"probability"`, `"logit"`, or `"auto"` to infer
            it from the last layer.
        calibrated_output: Which of several outputs of the base model to calibrate: its key in a
            dictionary, its index in a list, or its name (the name of its last layer). None for a
            base model with one output.
        **kwargs: Keyword arguments of every Keras model (`name`).

    Attributes:
        report: The `CalibrationReport` if `calibrate` created the model, else None. Not saved.
        head: The head; its `fit_summary` is the `FitSummary` of the last `fit_head`, else None.

    Raises:
        ValueError: If the base model cannot be calibrated (see `BaseLogits`), or the head reads a
            feature that is not an input of the base model.

    Example:
        >>> import numpy as np
        >>> from keras_calibration import fit_head
        >>> from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration
        >>> rng = np.random.default_rng(0)
        >>> x = {"site": rng.integers(0, 3, 400), "price": rng.normal(size=(400, 1))}
        >>> y = rng.random(400) < 0.3
        >>> inputs = {
        ...     "site": keras.Input((), dtype="int32", name="site"),
        ...     "price": keras.Input((1,), name="price"),
        ... }
        >>> base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
        >>> model = CalibratedModel(base, NeuralCalibration(ILPS(), FieldNetwork({"site": 3})))
        >>> summary = fit_head(model, x, y, verbose=0)
        >>> model.predict(x, verbose=0).shape
        (400, 1)

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 7 and 8.
    """

    base: BaseLogits
    head: Head
    report: CalibrationReport | None = None
    input_spec = None  # `call` checks the inputs itself, and ignores others

    def __init__(
        self,
        base_model: keras.Model,
        head: Head,
        base_output: str = "auto",
        calibrated_output: str | int | None = None,
        *_: Any,  # Keras' `clone_model` calls only models that take any arguments.
        **kwargs: Any,
    ) -> None:
        if isinstance(head, keras.KerasTensor):
            # `keras.models.clone_model` passes the symbolic inputs and output of new layers.
            super().__init__(inputs=base_model, outputs=head, **kwargs)
            match = find_head(self)
            self.base, self.head = match.base_layer, match.head  # type: ignore[assignment]
            return
        instance(
            "head",
            head,
            Head,
            "a `Head`",
            "Use one of this package, ILPS() for example, or subclass layers.Head.",
        )
        check_base_model(base_model, calibrated_output)
        inputs = named_inputs(symbolic_input(base_model))
        features = columns_by_path(inputs, inputs)
        names = features if head.feature_names is None else head.feature_names
        known(
            "Argument `base_model` must have an input for each feature of the head",
            names,
            features,
            "Add the input, even if the model does not use it.",
            missing=True,
        )
        features = {name: features[name] for name in names}
        taken = layer_names(inputs)
        if head.name in taken:
            raise ValueError(
                f"Layers and inputs must have different names. Received: a head and an input named "
                f"{head.name!r}. Rename the input, or pass name= to the head."
            )
        name, output = (free_name(part, [*taken, head.name]) for part in ("base", "probability"))
        # Freeze the base model only after everything else has worked: an error leaves it as it was.
        with trainable_flags_kept(base_model):
            base = BaseLogits(base_model, base_output, calibrated_output, name=name)
            probability = probability_of(head(base(inputs), features), head, output)
            super().__init__(inputs=inputs, outputs=probability, **kwargs)
        base.freeze()
        self.base = base
        self.head = head

    @property
    def base_model(self) -> keras.Model:
        """The base model, frozen."""
        return self.base.base_model

    def with_all_outputs(self) -> keras.Model:
        """Creates a Keras model with all outputs of the base model, one of them calibrated.

        A plain Functional model on the same inputs, with the outputs of the base model in the same
        structure (a dictionary, a list) and with the same names. The calibrated probability, in the
        head's dtype, takes the place of the calibrated output, also if that is a logit. The other
        outputs are unchanged. It shares the layers of this model: a later fit changes both.

        To calibrate another output too, calibrate the returned model. Layers that the two outputs
        share are then computed twice.

        Returns:
            The model. Save and load it like any Keras model; to load it, import `keras_calibration`
            first.

        Example:
            >>> import numpy as np
            >>> from keras_calibration.layers import ILPS, PlattScaling
            >>> inputs = keras.Input((2,), name="x")
            >>> outputs = {n: keras.layers.Dense(1, "sigmoid")(inputs) for n in ("click", "buy")}
            >>> base = keras.Model(inputs, outputs)
            >>> click = CalibratedModel(base, ILPS(), calibrated_output="click")
            >>> buy = CalibratedModel(
            ...     click.with_all_outputs(), PlattScaling(), calibrated_output="buy"
            ... )
            >>> both = buy.with_all_outputs()
            >>> sorted(both.predict(np.zeros((3, 2)), verbose=0))
            ['buy', 'click']
        """
        return with_all_outputs(self.base, self.head, self.input)

    def call(
        self, inputs: Inputs, training: bool | None = None, mask: Inputs | None = None
    ) -> Tensor:
        """Calibrated probabilities (batch, 1) or (batch, K)."""
        inputs = expected_inputs(inputs, self.input, self._ids)
        return super().call(inputs, training=training, mask=mask)

    def predict(self, x: Data, *args: Any, **kwargs: Any) -> np.ndarray:
        """As `keras.Model.predict`; warns of NaN, which a compiled step cannot.

        `predict_on_batch`, a call and served signatures return the same NaN without a warning.
        """
        values = super().predict(x, *args, **kwargs)
        if num_missing := np.count_nonzero(np.isnan(values).reshape(len(values), -1).any(axis=1)):
            warn(
                f"{num_missing:,} of {len(values):,} predictions are NaN. The base model returns "
                "NaN for these rows, for example because an input is missing, or a probability "
                "outside [0, 1]: where it was calibrated from probabilities, pass probabilities, "
                "and no logits."
            )
        return values

    def field_ids(self, x: Inputs, field: str) -> Tensor:
        """Ids (n,) of a field of the input: the head's ids if the head has the field.

        The head's "other" value has the id -1, as for all metrics.
        """
        features = columns_by_path(x, self.input)
        vocabulary = self.head.reads().fields.get(field)
        if vocabulary is not None and field in features:
            (num_values,) = vocabulary_sizes({field: vocabulary}).values()
            ids = ids_of_field(features[field], vocabulary, num_values)
            # Heads number "other" after all values; metrics give it -1.
            return keras.ops.where(ids >= num_values, -1, ids)
        return super().field_ids(features, field)

    def save(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.save`, to a `.keras` file."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"Argument `filepath` must end in `.keras`. Received: filepath={str(filepath)!r}."
            )
        super().save(filepath, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            "base_model": serialized_base(self.base_model),
            "head": keras.saving.serialize_keras_object(self.head),
            "base_output": self.base.base_output,
            "calibrated_output": self.base.calibrated_output,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> CalibratedModel:
        """Creates the model from its `get_config`."""
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("base_model", "head")
        }
        return cls(**{**config, **parts})

    @property
    def _ids(self) -> set[str]:
        """Names of the inputs that hold ids of the head's fields."""
        return with_tensor_names(self.head.reads().ids, self.input)
