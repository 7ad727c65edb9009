"""The rows on which an export is compared with Keras: the first of a sample, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_calibration._graph.head_in_model import HeadInModel
from keras_calibration._rows.columns import as_array
from keras_calibration._typing import Features, Inputs, Tensor

if TYPE_CHECKING:
    import tensorflow as tf

NUM_SAMPLE_ROWS = 64
# Random ids are below this number, or below the size of the smallest table of the model.
MAX_RANDOM_IDS = 10
_Specs = Mapping[str, "tf.TensorSpec"]


def first_rows(columns: Features, specs: _Specs) -> dict[str, Tensor]:
    """The first rows of columns, at most 64, as tensors with the shapes and dtypes of the specs."""
    import tensorflow as tf

    rows = {}
    for name, spec in specs.items():
        values = columns[name]
        values = values if tf.is_tensor(values) else as_array(values)
        values = tf.convert_to_tensor(values[:NUM_SAMPLE_ROWS])
        values = values if spec.dtype == tf.string else tf.cast(values, spec.dtype)
        rows[name] = tf.reshape(values, (-1, *spec.shape[1:]))
    return rows


def sample_rows(sample: Inputs, found: HeadInModel, specs: _Specs) -> dict[str, Tensor]:
    """The first rows of a sample, in the form that a model takes, by the model's inputs."""
    flat = keras.tree.flatten(found.reader.inputs(sample))
    if len(flat) != len(specs):
        raise ValueError(
            f"Argument `sample` must have the model's inputs {sorted(specs)}. Received: "
            f"{len(flat)} arrays."
        )
    columns = dict(zip(specs, flat, strict=True))
    rows = first_rows(columns, specs)
    num_rows = {name: len(values) for name, values in rows.items()}
    if len(set(num_rows.values())) != 1 or 0 in num_rows.values():
        raise ValueError(
            "Argument `sample` must have the same number of rows in every input, at least one. "
            f"Received: {num_rows}."
        )
    return rows


def random_rows(
    found: HeadInModel, specs: _Specs, layers: list[keras.layers.Layer]
) -> dict[str, Tensor]:
    """64 random rows: ids that every table of the model has, known and unknown strings.

    If a lookup of the model rejects unknown values, only known values are used.

    Args:
        found: The head in the model.
        specs: The inputs of the model.
        layers: The layers before the head.
    """
    import tensorflow as tf

    generator = np.random.default_rng(0)
    sizes = [_num_ids(layer) for layer in layers]
    known_ids = _only_known(layers, keras.layers.IntegerLookup) or range(min(sizes))
    known_words = _only_known(layers, keras.layers.StringLookup)
    rows = {}
    for name, tensor in specs.items():
        shape = (NUM_SAMPLE_ROWS, *(size or 1 for size in tensor.shape[1:]))
        if tensor.dtype == tf.string:
            words = known_words or [*_known_strings(found, name), "", "unknown"]
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
        return min(layer.input_dim, MAX_RANDOM_IDS)
    if isinstance(layer, keras.layers.CategoryEncoding):
        return min(layer.num_tokens or MAX_RANDOM_IDS, MAX_RANDOM_IDS)
    return MAX_RANDOM_IDS


def _only_known(
    layers: list[keras.layers.Layer], kind: type[keras.layers.Layer]
) -> list[int] | list[str]:
    """Values known to all lookups of a type that reject unknown values; empty without such."""
    strict = [layer for layer in layers if isinstance(layer, kind) and not layer.num_oov_indices]
    vocabularies = [set(layer.get_vocabulary()) for layer in strict]
    return sorted(set.intersection(*vocabularies)) if vocabularies else []
