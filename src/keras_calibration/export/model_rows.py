"""The inputs of a model by name: their signature, and rows to try a SavedModel on."""

import keyword
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_calibration.models.calibrated_model import CalibratedModel
from keras_calibration.models.model_inputs import inputs_by_name

NUM_SAMPLE_ROWS = 64
MAX_RANDOM_IDS = 10


def signature_input(feature: str) -> str:
    """The name under which a signature takes a feature: its own, where TensorFlow takes it.

    A Python keyword is followed by `_`; a character that TensorFlow does not take in the name of an
    input (a space, a letter beyond ASCII) becomes `_`, and a name that would begin with `_` begins
    with `input_`.

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


def input_specs(model: CalibratedModel) -> dict[str, Any]:
    """Name of each input of a model → its `tf.TensorSpec`, with any number of rows.

    Args:
        model: The calibrated model.

    Returns:
        The specs, each under the name that a signature gives to it.

    Raises:
        ValueError: If two inputs would get the same name.
    """
    import tensorflow as tf

    names = list(inputs_by_name(model.input, model.input))
    signature_names = [signature_input(name) for name in names]
    if len(set(signature_names)) < len(names):
        raise ValueError(
            "Inputs of the model must have different names in a signature, where spaces and "
            f"characters beyond ASCII become `_`. Received: {names}, which become "
            f"{signature_names}. Rename one of them."
        )

    return {
        name: tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=signature_input(name))
        for name, tensor in inputs_by_name(model.input, model.input).items()
    }


def head_inputs(model: CalibratedModel) -> list[str]:
    """Names of the inputs that the head reads; all of them where it does not tell.

    Args:
        model: The calibrated model.

    Returns:
        The names.
    """
    names = getattr(model.head, "feature_names", None)
    return list(inputs_by_name(model.input, model.input) if names is None else names)


def restructured(model: CalibratedModel, by_name: Mapping[str, Any]) -> Any:
    """Inputs by name in the structure that the model takes.

    Args:
        model: The calibrated model.
        by_name: Name → tensor.

    Returns:
        What `model` can be called on.
    """
    if isinstance(model.input, Mapping):
        return dict(by_name)
    return keras.tree.map_structure(lambda tensor: by_name[tensor.name], model.input)


def given_rows(model: CalibratedModel, sample: Any) -> dict[str, Any]:
    """The first rows of a sample as tensors of the inputs' shapes and dtypes.

    Args:
        model: The calibrated model.
        sample: Input rows as the model takes them.

    Returns:
        Name → tensor of at most 64 rows.

    Raises:
        ValueError: If an input is missing, or there is no row.
    """
    import tensorflow as tf

    inputs = inputs_by_name(model.input, model.input)
    by_name = inputs_by_name(sample, model.input)
    missing = [name for name in inputs if name not in by_name]
    if missing:
        raise ValueError(
            f"The sample must have the model's inputs {sorted(inputs)}. "
            f"Received: {sorted(by_name)}, without {missing}."
        )
    rows = {}
    for name, tensor in inputs.items():
        values = tf.convert_to_tensor(np.asarray(by_name[name])[:NUM_SAMPLE_ROWS])
        values = values if tensor.dtype == "string" else tf.cast(values, tensor.dtype)
        rows[name] = tf.reshape(values, (-1, *tensor.shape[1:]))
    num_rows = {name: len(values) for name, values in rows.items()}
    if len(set(num_rows.values())) != 1 or 0 in num_rows.values():
        raise ValueError(
            "The sample must have the same number of rows in every input, at least one. "
            f"Received: {num_rows}."
        )
    return rows


def random_rows(model: CalibratedModel) -> dict[str, Any]:
    """Rows of the inputs' shapes and dtypes: ids that every table of the base model has.

    Strings are some known to the head and some not; where a look-up of the base model refuses
    unknown values, only known ones.

    Args:
        model: The calibrated model.

    Returns:
        Name → tensor of 64 rows.
    """
    import tensorflow as tf

    generator = np.random.default_rng(0)
    layers = model.base_model._flatten_layers()
    sizes = [getattr(layer, name, None) for layer in layers for name in ("input_dim", "num_tokens")]
    num_ids = min([MAX_RANDOM_IDS, *(size for size in sizes if isinstance(size, int))])
    known_ids = _only_known(layers, keras.layers.IntegerLookup) or range(num_ids)
    known_words = _only_known(layers, keras.layers.StringLookup)
    rows = {}
    for name, tensor in inputs_by_name(model.input, model.input).items():
        shape = (NUM_SAMPLE_ROWS, *(size or 1 for size in tensor.shape[1:]))
        if tensor.dtype == "string":
            words = known_words or [*_known_strings(model, name), "", "unknown"]
            values = tf.constant(generator.choice(np.asarray(words, object), shape))
        elif "int" in tensor.dtype:
            values = tf.cast(generator.choice(np.asarray(known_ids), shape), tensor.dtype)
        else:
            values = tf.cast(generator.normal(size=shape), tensor.dtype)
        rows[name] = values
    return rows


def _only_known(layers: Any, kind: Any) -> list[Any]:
    """What all look-ups of a kind know that refuse what they do not know; empty if none does."""
    strict = [layer for layer in layers if isinstance(layer, kind) and not layer.num_oov_indices]
    vocabularies = [set(layer.get_vocabulary()) for layer in strict]
    return sorted(set.intersection(*vocabularies)) if vocabularies else []


def _known_strings(model: CalibratedModel, name: str) -> list[str]:
    lookups = [reader.fields.get(name) for reader in model.head.field_readers()]
    return [
        word
        for lookup in lookups
        if hasattr(lookup, "get_vocabulary")
        for word in lookup.get_vocabulary()[:20]
    ]
