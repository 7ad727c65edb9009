"""ServingSpec: everything that an export needs from a model with a head, read once."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from calibration_records._columns import suggestion
from calibration_records._warn import warn
from keras_calibration._graph.head_in_model import (
    LOGIT_OUTPUT,
    HeadInModel,
    depends_on,
    find_head,
)
from keras_calibration._graph.outputs import (
    output_name,
    output_names,
    symbolic_input,
    symbolic_output,
)
from keras_calibration._keras import flatten_layers
from keras_calibration._ops.losses import probabilities_from_logits
from keras_calibration._rows.reader import as_inputs
from keras_calibration._typing import Features, Inputs, Tensor
from keras_calibration.layers.head import Head
from keras_calibration.models.calibrated_model import CalibratedModel

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_calibration.calibration.calibration_report import CalibrationReport

NUM_SAMPLE_ROWS = 64
# The outputs of an export that are not the base model's other outputs.
OWN_OUTPUTS = (
    "probability",
    "uncalibrated_probability",
    "logit",
    "probability_lower",
    "probability_upper",
)
_MAX_RANDOM_IDS = 10
_Columns = dict[str, Tensor]


@dataclass(frozen=True)
class ServingSpec:
    """The inputs and parts of a model with a calibration head.

    Args:
        found: The head, and the tensors that it is called with.
        inputs: Input → `tf.TensorSpec` with any number of rows, named as in a signature.
        head_inputs: `logit` and the features of the head → `tf.TensorSpec`.
        base: Keras model from the inputs to the `logit`, the other outputs by name, and the
            features that the model computes.
        outputs: Keras model from the inputs to the `logit`, the calibrated `probability` and the
            other outputs, by name.
        other_outputs: Names of the model's outputs that are not calibrated.
        base_dtypes: Compute dtypes of the layers before the head, which determine its rounding.
        base_name: Name of the trained base model; of the model if it has no base model of its own.
        base_weights: The weights of the base model.
        report: The report of `calibrate`, if it made the model.
        last_epoch: The figures of the last epoch of the model's training, if there was one.
    """

    found: HeadInModel
    inputs: Mapping[str, tf.TensorSpec]
    head_inputs: Mapping[str, tf.TensorSpec]
    base: keras.Model
    outputs: keras.Model
    other_outputs: tuple[str, ...]
    base_dtypes: frozenset[str]
    base_name: str
    base_weights: tuple[keras.Variable, ...]
    report: CalibrationReport | None
    last_epoch: Mapping[str, float] | None

    @property
    def head(self) -> Head:
        """The calibration head."""
        return self.found.head

    def base_outputs(self, rows: Features) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The `logit` and the other outputs for inputs by name, and the features of the head."""
        values = self.base(self.found.structured(rows), training=False)
        outputs = {name: values[name] for name in (LOGIT_OUTPUT, *self.other_outputs)}
        return outputs, self.found.features_from(rows, values)

    def head_features(self, rows: Features) -> dict[str, Tensor]:
        """The features of the head for inputs by name."""
        if not self.found.computed:
            return self.found.features_from(rows, {})
        return self.base_outputs(rows)[1]


def serving_spec(model: keras.Model, calibrated_output: str | int | None = None) -> ServingSpec:
    """Reads the `ServingSpec` of a model.

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
    given = model
    if isinstance(model, CalibratedModel) and len(output_names(model.base_model)) > 1:
        calibrated_output = output_name(model.base_model, model.base.calibrated_output)
        model = model.with_all_outputs()
    found = find_head(model, calibrated_output)
    structure, base_outputs = symbolic_input(model), found.base_outputs
    probability = probabilities_from_logits(_column(found.calibrated))
    others = _other_outputs(found)
    logit = base_outputs[LOGIT_OUTPUT]
    features = tensor_specs(found.features)
    base = keras.Model(structure, {**base_outputs, **others})
    trained = given.base_model if isinstance(given, CalibratedModel) else None
    history = getattr(getattr(given, "history", None), "history", {})
    return ServingSpec(
        found=found,
        inputs=tensor_specs(found.inputs),
        head_inputs={LOGIT_OUTPUT: _spec_of(LOGIT_OUTPUT, logit), **features},
        base=base,
        outputs=keras.Model(structure, {LOGIT_OUTPUT: logit, "probability": probability, **others}),
        other_outputs=tuple(others),
        base_dtypes=frozenset(
            layer.compute_dtype for layer in flatten_layers(keras.Model(structure, found.logit))
        ),
        base_name=(trained or given).name,
        base_weights=tuple((trained or base).weights),
        report=getattr(given, "report", None),
        last_epoch={name: values[-1] for name, values in history.items() if values} or None,
    )


def _column(tensor: keras.KerasTensor) -> keras.KerasTensor:
    return tensor if len(tensor.shape) == 2 else ops.expand_dims(tensor, 1)


def _other_outputs(found: HeadInModel) -> dict[str, keras.KerasTensor]:
    """The outputs of the model that its head does not calibrate, by name."""
    tensors = keras.tree.flatten(symbolic_output(found.model))
    others = dict(zip(output_names(found.model), tensors, strict=True))
    others.pop(found.output_name)
    if taken := sorted(set(others) & set(OWN_OUTPUTS)):
        raise ValueError(
            f"No other output of the model may be named {' or '.join(taken)}: exports return "
            f"{', '.join(OWN_OUTPUTS)} of the calibrated output. Received: a model with the other "
            f"outputs {list(others)}. Rename the output, for example in the model's dictionary of "
            "outputs."
        )
    for name, tensor in others.items():
        if not tensor.shape or tensor.shape[0] != found.logit.shape[0]:
            raise ValueError(
                "Each output of the model must have one entry per row to be served. Received: the "
                f"output {name!r} of shape {tensor.shape}. Export a model without it."
            )
        if depends_on(tensor, found.head):
            raise ValueError(
                f"Only the output {found.output_name!r} may depend on the head, because the other "
                "outputs are served without it and do not follow a refresh. Received: the output "
                f"{name!r}, computed from the head {found.head.name!r}. Export a model without it."
            )
    return others


def signature_input(feature: str) -> str:
    """The name of a feature in a signature: its own name, if TensorFlow allows it.

    A Python keyword gets a trailing `_`. Characters that TensorFlow does not allow in the name of
    an input (a space, a letter beyond ASCII) become `_`. A name that would start with `_` gets the
    prefix `input`.

    Args:
        feature: Name of an input of the model.

    Returns:
        The name of the signature's input.

    Example:
        >>> signature_input("site_id"), signature_input("class"), signature_input("site id")
        ('site_id', 'class_', 'site_id')
    """
    name = re.sub(r"[^A-Za-z0-9_.>-]", "_", feature)
    name = "input" + name if name.startswith("_") else name
    return name + "_" * keyword.iskeyword(name)


def tensor_specs(inputs: Mapping[str, keras.KerasTensor]) -> dict[str, tf.TensorSpec]:
    """`tf.TensorSpec`s of symbolic inputs, with any number of rows and their signature names."""
    names = list(map(signature_input, inputs))
    # TensorFlow puts the names of a signature's arguments into lower case.
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(
            "The inputs of the model must have different names in a signature, where spaces and "
            "non-ASCII characters become `_`, and capital letters do not count. Received: "
            f"{list(inputs)}, which become {names}. Rename one of them."
        )
    return {name: _spec_of(name, tensor) for name, tensor in inputs.items()}


def _spec_of(name: str, tensor: keras.KerasTensor) -> tf.TensorSpec:
    import tensorflow as tf

    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=signature_input(name))


def by_signature(rows: Features) -> dict[str, Tensor]:
    """Renames columns to their names in a signature."""
    return {signature_input(name): values for name, values in rows.items()}


def first_rows(columns: Features, specs: Mapping[str, tf.TensorSpec]) -> _Columns:
    """The first rows of columns, at most 64, as tensors with the shapes and dtypes of the specs."""
    import tensorflow as tf

    rows = {}
    for name, spec in specs.items():
        values = columns[name]
        values = values if tf.is_tensor(values) else np.asarray(values)
        values = tf.convert_to_tensor(values[:NUM_SAMPLE_ROWS])
        values = values if spec.dtype == tf.string else tf.cast(values, spec.dtype)
        rows[name] = tf.reshape(values, (-1, *spec.shape[1:]))
    return rows


def sample_rows(spec: ServingSpec, sample: Inputs | None) -> _Columns:
    """The rows for comparing an export: the first rows of `sample`, or random rows."""
    if sample is None:
        return _random_rows(spec)
    structure = symbolic_input(spec.found.model)
    columns = as_inputs(sample, structure, spec.found.ids)
    if not isinstance(columns, Mapping):
        flat = keras.tree.flatten(columns)
        columns = dict(zip(spec.inputs, flat, strict=False))
    missing = [name for name in spec.inputs if name not in columns]
    if missing:
        raise ValueError(
            f"Argument `sample` must have the model's inputs {sorted(spec.inputs)}. Received: "
            f"{sorted(columns)}, without {missing}.{suggestion(missing, columns)}"
        )
    rows = first_rows(columns, spec.inputs)
    num_rows = {name: len(values) for name, values in rows.items()}
    if len(set(num_rows.values())) != 1 or 0 in num_rows.values():
        raise ValueError(
            "Argument `sample` must have the same number of rows in every input, at least one. "
            f"Received: {num_rows}."
        )
    return rows


def _random_rows(spec: ServingSpec) -> _Columns:
    """64 random rows: ids that every table of the model has, known and unknown strings.

    If a lookup of the model rejects unknown values, only known values are used.
    """
    import tensorflow as tf

    generator = np.random.default_rng(0)
    layers = list(flatten_layers(spec.base))
    sizes = [_num_ids(layer) for layer in layers]
    known_ids = _only_known(layers, keras.layers.IntegerLookup) or range(min(sizes))
    known_words = _only_known(layers, keras.layers.StringLookup)
    rows = {}
    for name, tensor in spec.inputs.items():
        shape = (NUM_SAMPLE_ROWS, *(size or 1 for size in tensor.shape[1:]))
        if tensor.dtype == tf.string:
            words = known_words or [*_known_strings(spec.found, name), "", "unknown"]
            rows[name] = tf.constant(generator.choice(np.asarray(words, object), shape))
        elif tensor.dtype.is_integer:
            rows[name] = tf.cast(generator.choice(np.asarray(known_ids), shape), tensor.dtype)
        else:
            rows[name] = tf.cast(generator.normal(size=shape), tensor.dtype)
    return rows


def _known_strings(found: HeadInModel, name: str) -> list[str]:
    """Some words in the vocabularies of the head's lookups of an input."""
    fields = [feature for feature, input_name in found.input_of.items() if input_name == name]
    readers = found.head.field_readers()
    tables = [reader.fields.get(field) for reader in readers for field in fields]
    lookups = [each for each in tables if isinstance(each, keras.layers.StringLookup)]
    return [word for lookup in lookups for word in lookup.get_vocabulary()[:20]]


def _num_ids(layer: keras.layers.Layer) -> int:
    """Number of ids that a layer allows, at most ten."""
    if isinstance(layer, keras.layers.Embedding):
        return min(layer.input_dim, _MAX_RANDOM_IDS)
    if isinstance(layer, keras.layers.CategoryEncoding):
        return min(layer.num_tokens or _MAX_RANDOM_IDS, _MAX_RANDOM_IDS)
    return _MAX_RANDOM_IDS


def _only_known(
    layers: list[keras.layers.Layer], kind: type[keras.layers.Layer]
) -> list[int] | list[str]:
    """Values known to all lookups of a type that reject unknown values; empty without such."""
    strict = [layer for layer in layers if isinstance(layer, kind) and not layer.num_oov_indices]
    vocabularies = [set(layer.get_vocabulary()) for layer in strict]
    return sorted(set.intersection(*vocabularies)) if vocabularies else []


def outputs_on(spec: ServingSpec, rows: Features, is_random: bool) -> dict[str, Tensor]:
    """The Keras model's `logit`, calibrated `probability` and other outputs, by name."""
    import tensorflow as tf

    try:
        # On the CPU, as the export: matrix products are less exact on a GPU.
        with tf.device("CPU:0"):
            return dict(spec.outputs(spec.found.structured(rows), training=False))
    except (tf.errors.OpError, ValueError) as error:
        kind = f"random rows (ids below {_MAX_RANDOM_IDS})" if is_random else "sample"
        raise ValueError(
            f"The model fails on the {kind} with which the export is verified: "
            f"{str(error).splitlines()[0]} Pass `sample`, input rows that the model accepts."
        ) from error


def warn_if_unfitted(spec: ServingSpec, probability: Tensor, logit: Tensor) -> None:
    """Warns if the head changes no probability and has not been fitted."""
    is_same = np.array_equal(probability, probabilities_from_logits(logit), equal_nan=True)
    if is_same and not spec.head.is_as_fitted:
        warn(
            f"The head {spec.head.name!r} changes no probability. It seems that it has never been "
            "fitted, and the exported model would serve uncalibrated probabilities. Fit it before "
            "the export, with kc.fit_head or kc.calibrate.",
        )
