"""The rows on which an export is compared with Keras: the first of a sample, or random ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from calibration_records._columns import as_array
from keras_calibration._graph.head_in_model import HeadInModel
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
        values = tf.cast(values[:NUM_SAMPLE_ROWS], spec.dtype)
        # A width that the model leaves open is that of the sample.
        shape = (-1, *spec.shape[1:])
        rows[name] = values if None in shape else tf.reshape(values, shape)
    return rows


def sample_rows(sample: Inputs, match: HeadInModel, specs: _Specs) -> dict[str, Tensor]:
    """The first rows of a sample, by the model's inputs."""
    flat = keras.tree.flatten(match.reader.inputs(sample))
    num_rows = [(*getattr(column, "shape", ()), 0)[0] for column in flat]
    if len(flat) != len(specs) or len(set(num_rows)) != 1 or not num_rows[0]:
        raise ValueError(
            "Argument `sample` must have as many rows, at least one, in each of the inputs "
            f"{sorted(specs)}. Received: {type(sample).__name__} of {num_rows} rows."
        )
    return first_rows(dict(zip(specs, flat, strict=True)), specs)


def random_rows(specs: _Specs, layers: Iterable[keras.layers.Layer]) -> dict[str, Tensor]:
    """64 random rows: ids that every table of the layers has, and words of their vocabularies."""
    import tensorflow as tf

    generator = np.random.default_rng(0)
    tables = [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]
    num_ids = min([MAX_RANDOM_IDS, *(layer.input_dim for layer in tables)])
    lookups = [layer for layer in layers if isinstance(layer, keras.layers.StringLookup)]
    words = [word for layer in lookups for word in layer.get_vocabulary()[:20]] or ["unknown"]
    rows = {}
    for name, tensor in specs.items():
        shape = (NUM_SAMPLE_ROWS, *(size or 1 for size in tensor.shape[1:]))
        if tensor.dtype == tf.string:
            rows[name] = tf.constant(generator.choice(np.asarray(words, object), shape))
        elif tensor.dtype.is_integer:
            rows[name] = tf.cast(generator.integers(0, num_ids, shape), tensor.dtype)
        else:
            rows[name] = tf.cast(generator.normal(size=shape), tensor.dtype)
    return rows
