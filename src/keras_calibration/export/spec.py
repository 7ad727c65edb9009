"""Spec: the parts of a model with a head that an export needs."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from calibration_records._check import confidence_level
from calibration_records._warn import warn
from keras_calibration._graph.base_logits import with_all_outputs
from keras_calibration._graph.head_in_model import LOGIT_OUTPUT, HeadInModel, depends_on, find_head
from keras_calibration._graph.outputs import output_names, symbolic_input, symbolic_output
from keras_calibration._keras import flatten_layers
from keras_calibration._ops.losses import probabilities_from_logits
from keras_calibration._typing import Features, Inputs, Tensor
from keras_calibration.export.publish import CALIBRATE, RAW, SERVING, Request
from keras_calibration.export.sample import MAX_RANDOM_IDS, random_rows, sample_rows
from keras_calibration.export.verification import Outputs, Tolerance, tolerance_for
from keras_calibration.layers.fits import is_as_fitted
from keras_calibration.layers.head import Head
from keras_calibration.layers.posterior import interval_width

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_calibration.calibration.calibration_report import CalibrationReport

HEAD_OUTPUTS = ("probability", "probability_lower", "probability_upper")
# The outputs of an export that are not the base model's other outputs.
OWN_OUTPUTS = ("probability", "uncalibrated_probability", "logit", *HEAD_OUTPUTS[1:])
_LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.Hashing,
    keras.layers.TextVectorization,
)
_Columns = dict[str, Tensor]


@dataclass(frozen=True)
class Spec:
    """A model with a calibration head, and rows with Keras' outputs.

    Args:
        match: The head, and the tensors that it is called with.
        sample: Rows for the comparison of the export, in the form of the model's inputs; None for
            random rows.
        interval: Level of the intervals that the export also returns, or None.
        base: Keras model from the inputs to the `logit`, the other outputs by name, and the
            features that the model computes.
        other_outputs: Names of the model's outputs that are not calibrated.
        base_name: Name of the trained base model, or of the model if it has none.
        report: The report of `calibrate`, if it made the model.
    """

    match: HeadInModel
    sample: Inputs | None
    interval: float | None
    base: keras.Model
    other_outputs: tuple[str, ...]
    base_name: str
    report: CalibrationReport | None

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        sample: Inputs | None = None,
        interval: float | None = None,
        calibrated_output: str | int | None = None,
    ) -> Spec:
        """Reads a model.

        Raises:
            ValueError: If Keras does not run on TensorFlow, the model has no head, or its inputs or
                other outputs cannot be inputs or outputs of signatures.
        """
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "The Keras backend must be TensorFlow to export a model. Received: "
                f"{keras.backend.backend()!r}. Save the model to a .keras file, set "
                "KERAS_BACKEND=tensorflow, load the file and export."
            )
        match = _add_other_outputs(find_head(model, calibrated_output))
        if LOGIT_OUTPUT in match.features:
            raise ValueError(
                "No feature of the head may be named `logit`, the name of the base model's logit "
                "in exports. Received: a head that reads a feature `logit`. Rename that input of "
                "the base model."
            )
        others = _find_other_outputs(match)
        # One model before the head: it computes the parts that logit, other outputs and features
        # share only once.
        base = keras.Model(symbolic_input(match.model), {**match.base_outputs, **others})
        trained = model if match.base_layer is None else match.base_layer.base_model
        spec = cls(
            match,
            sample,
            interval,
            base,
            other_outputs=tuple(others),
            base_name=trained.name,
            report=getattr(model, "report", None),
        )
        _ = spec.inputs, spec.head_inputs  # raises if their names cannot be those of a signature
        return spec

    @cached_property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """Input → its shape, with any number of rows, and its name in a signature."""
        return tensor_specs(self.match.inputs)

    @cached_property
    def head_inputs(self) -> dict[str, tf.TensorSpec]:
        """The same for `logit` and the features of the head."""
        logit = self.match.base_outputs[LOGIT_OUTPUT]
        return {
            LOGIT_OUTPUT: _build_tensor_spec(LOGIT_OUTPUT, logit),
            **tensor_specs(self.match.features),
        }

    @property
    def head(self) -> Head:
        """The calibration head."""
        return self.match.head

    @cached_property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers of the base, and the lookup layers of the fields of the head."""
        tables = self.head.reads().fields.values()
        lookups = [table for table in tables if isinstance(table, keras.layers.Layer)]
        return [*flatten_layers(self.base), *lookups]

    @property
    def lookups(self) -> list[keras.layers.Layer]:
        """The layers of base and head that turn values into ids by a table or a hash."""
        return [layer for layer in self.layers if isinstance(layer, _LOOKUPS)]

    def base_outputs(self, rows: Features) -> tuple[_Columns, _Columns]:
        """The values before the head, for inputs by name.

        Returns:
            The `logit`, the `uncalibrated_probability` and the other outputs; and the inputs of the
            head, as in the signature `calibrate`.
        """
        values = self.base(self.match.structured(rows), training=False)
        logit = values[LOGIT_OUTPUT]
        raw = {
            "uncalibrated_probability": probabilities_from_logits(logit),
            LOGIT_OUTPUT: logit,
            **{name: values[name] for name in self.other_outputs},
        }
        return raw, {LOGIT_OUTPUT: logit, **self.match.features_from(rows, values)}

    def outputs(self, rows: Features) -> _Columns:
        """All outputs, for inputs by name."""
        raw, inputs = self.base_outputs(rows)
        return {**head_outputs(self.head, inputs, self.interval), **raw}

    @cached_property
    def rows(self) -> _Columns:
        """The rows for the comparison, at most 64, by the model's inputs."""
        if self.sample is not None:
            with self._run_on_cpu():
                return sample_rows(self.sample, self.match, self.inputs)
        return random_rows(self.inputs, self.layers)

    @cached_property
    def head_rows(self) -> _Columns:
        """The inputs of the head for the rows."""
        return self._on_rows[1]

    @cached_property
    def expected(self) -> _Columns:
        """Keras' outputs for the rows, by name.

        Raises:
            ValueError: If the model fails on the rows, or has no such interval.
        """
        if self.interval is not None:
            confidence_level("interval", self.interval)
        check_interval(self.head, self.head_rows, self.interval)
        with self._run_on_cpu():
            of_head = head_outputs(self.head, self.head_rows, self.interval)
        return {**of_head, **self._on_rows[0]}

    @cached_property
    def _on_rows(self) -> tuple[_Columns, _Columns]:
        """`base_outputs` of the rows."""
        rows = self.rows
        with self._run_on_cpu():
            return self.base_outputs(rows)

    @contextlib.contextmanager
    def _run_on_cpu(self) -> Iterator[None]:
        """Runs the block on the CPU; errors name the rows."""
        import tensorflow as tf

        try:
            # Like the export, because matrix products are less exact on a GPU.
            with tf.device("CPU:0"):
                yield
        except (tf.errors.OpError, ValueError) as error:
            kind = f"random rows (ids below {MAX_RANDOM_IDS})" if self.sample is None else "sample"
            raise ValueError(
                f"The model fails on the {kind} with which the export is verified: "
                f"{str(error).splitlines()[0]} Pass `sample`, input rows that the model accepts."
            ) from error

    def request(self, signature: str = SERVING, num_rows: int | None = None) -> Request:
        """The rows, by default all, as a request to a signature, with Keras' answer."""
        rows, head_rows, expected = (
            {name: values[:num_rows] for name, values in columns.items()}
            for columns in (self.rows, self.head_rows, self.expected)
        )
        of_head = {name: expected.pop(name) for name in HEAD_OUTPUTS if name in expected}
        if signature == CALIBRATE:
            return Request(signature, by_signature(head_rows), lambda _: of_head)
        if signature == RAW:
            return Request(signature, by_signature(rows), lambda _: expected)

        # Compare the head on the logits that the export computed. They may differ from Keras' by
        # rounding, and a step function would jump between the two.
        def with_head(received: Outputs) -> _Columns:
            inputs = {**head_rows, LOGIT_OUTPUT: ops.convert_to_tensor(received[LOGIT_OUTPUT])}
            with self._run_on_cpu():
                return {**expected, **head_outputs(self.head, inputs, self.interval)}

        return Request(signature, by_signature(rows), with_head)

    @property
    def tolerance(self) -> Tolerance:
        """The allowed differences of outputs; dtypes before the head determine the rounding."""
        # A half-precision layer before the logit makes it differ by more than float32 would.
        before = keras.Model(symbolic_input(self.match.model), self.match.logit)
        dtypes = {layer.compute_dtype for layer in flatten_layers(before)}
        others = {name: self.expected[name] for name in self.other_outputs}
        return tolerance_for(self.expected[LOGIT_OUTPUT], dtypes, others)

    def warn_if_unfitted(self) -> None:
        """Warns if the head changes no probability and has not been fitted."""
        before = self.expected["uncalibrated_probability"]
        after = self.expected["probability"]
        if np.array_equal(before, after, equal_nan=True) and not is_as_fitted(self.head):
            warn(
                f"The head {self.head.name!r} changes no probability. It seems that it has never "
                "been fitted, and the exported model would serve uncalibrated probabilities. Fit "
                "it before the export, with kc.fit_head or kc.calibrate."
            )


def check_interval(head: Head, inputs: Features, level: float | None) -> None:
    """Raises if intervals are asked for that the head has not, or that would be wrong."""
    if level is not None:
        first = {name: values[:1] for name, values in inputs.items()}
        head.interval(first.pop(LOGIT_OUTPUT), first, level=level)


def head_outputs(head: Head, inputs: Features, interval: float | None) -> _Columns:
    """The outputs of a head by name, for inputs with `logit` and its features."""
    features = {name: values for name, values in inputs.items() if name != LOGIT_OUTPUT}
    calibrated = head(inputs[LOGIT_OUTPUT], features)
    outputs = {"probability": probabilities_from_logits(calibrated)}
    if interval is None:
        return outputs
    away = interval_width(interval) * head.logit_standard_deviation(inputs[LOGIT_OUTPUT], features)
    return {
        **outputs,
        "probability_lower": ops.sigmoid(calibrated - away),
        "probability_upper": ops.sigmoid(calibrated + away),
    }


def _add_other_outputs(match: HeadInModel) -> HeadInModel:
    """The head in a model that also has the other outputs of its base model, if there are any."""
    base = match.base_layer
    if (
        base is None
        or len(output_names(base.base_model)) == 1
        or len(output_names(match.model)) > 1
    ):
        return match
    # A `CalibratedModel` returns one output; its exports return the others of the base model too.
    model = with_all_outputs(base, match.head, symbolic_input(match.model))
    return find_head(model, match.label_names[0])


def _find_other_outputs(match: HeadInModel) -> dict[str, keras.KerasTensor]:
    """The outputs of the model that its head does not calibrate, by name."""
    tensors = keras.tree.flatten(symbolic_output(match.model))
    others = dict(zip(output_names(match.model), tensors, strict=True))
    others.pop(match.output_name)
    if taken := sorted(set(others) & set(OWN_OUTPUTS)):
        raise ValueError(
            f"No other output of the model may be named {' or '.join(taken)}: exports return "
            f"{', '.join(OWN_OUTPUTS)} of the calibrated output. Received: a model with the other "
            f"outputs {list(others)}. Rename the output, for example in the model's dictionary of "
            "outputs."
        )
    for name, tensor in others.items():
        if not tensor.shape or tensor.shape[0] != match.logit.shape[0]:
            raise ValueError(
                "Each output of the model must have one entry per row to be served. Received: the "
                f"output {name!r} of shape {tensor.shape}. Export a model without it."
            )
        if depends_on(tensor, match.head):
            raise ValueError(
                f"Only the output {match.output_name!r} may depend on the head, because the other "
                "outputs are served without it and do not follow a refresh. Received: the output "
                f"{name!r}, computed from the head {match.head.name!r}. Export a model without it."
            )
    return others


def signature_input(feature: str) -> str:
    """The name of a feature in a signature: the same name, if TensorFlow allows it.

    A Python keyword gets a trailing `_`. Characters that TensorFlow does not allow in the name of
    an input (a space, a letter beyond ASCII) become `_`. A name that would not start with a letter
    or digit gets the prefix `input`.

    Args:
        feature: Name of an input of the model.

    Returns:
        The name of the signature's input.

    Example:
        >>> signature_input("site_id"), signature_input("class"), signature_input("site id")
        ('site_id', 'class_', 'site_id')
    """
    name = re.sub(r"[^A-Za-z0-9_.>-]", "_", feature)
    name = name if name[:1].isalnum() else "input" + name
    return name + "_" * (keyword.iskeyword(name) or name == "self")


def tensor_specs(inputs: Mapping[str, keras.KerasTensor]) -> dict[str, tf.TensorSpec]:
    """`tf.TensorSpec`s of symbolic inputs, with any number of rows and their signature names."""
    names = list(map(signature_input, inputs))
    # TensorFlow does this with the names of a signature's arguments, before it compares them.
    if len({re.sub("[^a-z0-9]", "_", name.lower()) for name in names}) < len(names):
        raise ValueError(
            "The inputs of the model must have different names in a signature, where all but "
            "letters and digits counts as `_`, and capital letters as small. Received: "
            f"{list(inputs)}, which become {names}. Rename one of them."
        )
    return {name: _build_tensor_spec(name, tensor) for name, tensor in inputs.items()}


def _build_tensor_spec(name: str, tensor: keras.KerasTensor) -> tf.TensorSpec:
    import tensorflow as tf

    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=signature_input(name))


def by_signature(rows: Features) -> dict[str, Tensor]:
    """Renames columns to their names in a signature."""
    return {signature_input(name): values for name, values in rows.items()}
