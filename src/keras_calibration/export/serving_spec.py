"""ServingSpec: everything that an export needs from a calibrated model, read once."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_calibration._columns import suggestion
from keras_calibration._compat import flatten_layers
from keras_calibration._typing import Features, Inputs, Tensor
from keras_calibration._warn import warn
from keras_calibration.layers.field_ids import id_fields
from keras_calibration.layers.head import Head
from keras_calibration.models.all_outputs import all_base_outputs
from keras_calibration.models.calibrated_model import CalibratedModel
from keras_calibration.models.development_set import as_inputs
from keras_calibration.models.model_inputs import inputs_by_name
from keras_calibration.ops.losses import probabilities_from_logits

if TYPE_CHECKING:
    import tensorflow as tf

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
    """The inputs and parts of a calibrated model.

    Args:
        inputs: Feature → `tf.TensorSpec` with any number of rows, named as in a signature.
        head_features: The features that the head reads.
        logit: `tf.TensorSpec` of the base model's logit, or of one logit per class.
        structure: The symbolic inputs, in the structure that the model takes.
        base: Keras model from the inputs to the `logit` and the other outputs, by name.
        outputs: Keras model from the inputs to the `logit`, the calibrated `probability` and the
            other outputs, by name.
        other_outputs: Names of the base model's outputs that are not calibrated.
        head: The calibration head.
        base_dtypes: Compute dtypes of the base model's layers, which determine its rounding.
    """

    inputs: Mapping[str, tf.TensorSpec]
    head_features: tuple[str, ...]
    logit: tf.TensorSpec
    structure: Inputs
    base: keras.Model
    outputs: keras.Model
    other_outputs: tuple[str, ...]
    head: Head
    base_dtypes: frozenset[str]

    @property
    def head_inputs(self) -> dict[str, tf.TensorSpec]:
        """Name → `tf.TensorSpec` of the head's inputs: the logit and its features."""
        return {"logit": self.logit, **{name: self.inputs[name] for name in self.head_features}}

    def structured(self, rows: Features) -> Inputs:
        """Converts inputs by name to the structure that the model takes."""
        if isinstance(self.structure, Mapping):
            return dict(rows)
        return keras.tree.map_structure(lambda tensor: rows[tensor.name], self.structure)

    def of_head(self, rows: Features) -> dict[str, Tensor]:
        """Selects the features that the head reads."""
        return {name: rows[name] for name in self.head_features}


def serving_spec(model: keras.Model) -> ServingSpec:
    """Reads the `ServingSpec` of a model.

    Raises:
        ValueError: If Keras does not run on TensorFlow, the model is not a `CalibratedModel`, or
            its inputs or other outputs cannot be inputs or outputs of signatures.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "The Keras backend must be TensorFlow to export a model. Received: "
            f"{keras.backend.backend()!r}. Save the model to a .keras file, set "
            "KERAS_BACKEND=tensorflow, load the file and export."
        )
    if not isinstance(model, CalibratedModel):
        raise ValueError(
            f"Argument `model` must be a CalibratedModel. Received: {type(model).__name__}. Export "
            "other Keras models with model.export(path)."
        )
    import tensorflow as tf

    inputs = tensor_specs(inputs_by_name(model.input, model.input))
    names = model.head.feature_names
    outputs, others = _symbolic_outputs(model)
    of_base = {name: outputs[name] for name in ("logit", *others)}
    return ServingSpec(
        inputs=inputs,
        head_features=tuple(inputs if names is None else names),
        logit=tf.TensorSpec(model.base.output.shape, model.base.compute_dtype, name="logit"),
        structure=model.input,
        base=keras.Model(model.input, of_base),
        outputs=keras.Model(model.input, outputs),
        other_outputs=tuple(others),
        head=model.head,
        base_dtypes=frozenset(layer.compute_dtype for layer in flatten_layers(model.base_model)),
    )


def _symbolic_outputs(model: CalibratedModel) -> tuple[dict[str, keras.KerasTensor], list[str]]:
    """The `logit`, `probability` and other outputs by name, and the names of the others."""
    names = model.base.other_outputs
    if not names:
        return {"logit": model.base.output, "probability": model.output}, []
    if taken := sorted(set(names) & set(OWN_OUTPUTS)):
        raise ValueError(
            f"No other output of the base model may be named {' or '.join(taken)}: exports return "
            f"{', '.join(OWN_OUTPUTS)} of the calibrated output. Received: a base model with the "
            f"other outputs {names}. Rename the output, for example in the base model's dictionary "
            "of outputs."
        )
    # One call gives all, so that what they have in common is computed once.
    others = keras.tree.flatten(all_base_outputs(model.base, model.input))
    logit = others.pop(model.base.position)
    for name, tensor in zip(names, others, strict=True):
        if not tensor.shape or tensor.shape[0] != logit.shape[0]:
            raise ValueError(
                "Each output of the base model must have one entry per row to be served. Received: "
                f"the output {name!r} of shape {tensor.shape}. Calibrate a model without it."
            )
    features = inputs_by_name(model.input, model.input)
    read = features if model.head.feature_names is None else model.head.feature_names
    calibrated = model.head(logit, {name: features[name] for name in read})
    outputs = {"logit": logit, "probability": model.probability(calibrated)}
    return {**outputs, **dict(zip(names, others, strict=True))}, names


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
    import tensorflow as tf

    names = list(map(signature_input, inputs))
    # TensorFlow puts the names of a signature's arguments into lower case.
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(
            "The inputs of the model must have different names in a signature, where spaces and "
            "non-ASCII characters become `_`, and capital letters do not count. Received: "
            f"{list(inputs)}, which become {names}. Rename one of them."
        )
    return {
        name: tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=signature_input(name))
        for name, tensor in inputs.items()
    }


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


def sample_rows(model: CalibratedModel, spec: ServingSpec, sample: Inputs | None) -> _Columns:
    """The rows for comparing an export: the first rows of `sample`, or random rows."""
    if sample is None:
        return _random_rows(model, spec)
    ids = id_fields(model.head.field_readers())
    columns = inputs_by_name(as_inputs(sample, model.input, ids), model.input)
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


def _random_rows(model: CalibratedModel, spec: ServingSpec) -> _Columns:
    """64 random rows: ids that every table of the base model has, known and unknown strings.

    If a lookup of the base model rejects unknown values, only known values are used.
    """
    import tensorflow as tf

    generator = np.random.default_rng(0)
    layers = list(flatten_layers(model.base_model))
    sizes = [_num_ids(layer) for layer in layers]
    known_ids = _only_known(layers, keras.layers.IntegerLookup) or range(min(sizes))
    known_words = _only_known(layers, keras.layers.StringLookup)
    rows = {}
    for name, tensor in spec.inputs.items():
        shape = (NUM_SAMPLE_ROWS, *(size or 1 for size in tensor.shape[1:]))
        if tensor.dtype == tf.string:
            words = known_words or [*_known_strings(model.head, name), "", "unknown"]
            rows[name] = tf.constant(generator.choice(np.asarray(words, object), shape))
        elif tensor.dtype.is_integer:
            rows[name] = tf.cast(generator.choice(np.asarray(known_ids), shape), tensor.dtype)
        else:
            rows[name] = tf.cast(generator.normal(size=shape), tensor.dtype)
    return rows


def _known_strings(head: Head, field: str) -> list[str]:
    """Some words in the vocabularies of a field's lookups."""
    found = [reader.fields.get(field) for reader in head.field_readers()]
    lookups = [each for each in found if isinstance(each, keras.layers.StringLookup)]
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
            return dict(spec.outputs(spec.structured(rows), training=False))
    except (tf.errors.OpError, ValueError) as error:
        kind = f"random rows (ids below {_MAX_RANDOM_IDS})" if is_random else "sample"
        raise ValueError(
            f"The model fails on the {kind} with which the export is verified: "
            f"{str(error).splitlines()[0]} Pass `sample`, input rows that the model accepts."
        ) from error


def warn_if_unfitted(model: CalibratedModel, probability: Tensor, logit: Tensor) -> None:
    """Warns if the head changes no probability and was neither fitted nor chosen by `calibrate`."""
    is_same = np.array_equal(probability, probabilities_from_logits(logit), equal_nan=True)
    if is_same and model.report is None and model.fitted_at is None:
        warn(
            f"The head {model.head.name!r} changes no probability. It seems that it has never been "
            "fitted, and the exported model would serve uncalibrated probabilities. Fit it before "
            "the export, with kc.calibrate, CalibratedModel.fit or the head's own fit.",
        )
