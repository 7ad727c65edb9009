"""Embeddings as they are served: rows found in two operations, where Keras takes four."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops


def plain_embeddings(model: Any) -> Iterator[keras.layers.Embedding]:
    """The `Embedding` layers of a model and of the models in it, without quantized ones and LoRA.

    Args:
        model: A Keras model.

    Yields:
        The layers; a subclass may compute anything and is none of them.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(3, 4)])
        >>> [layer.input_dim for layer in plain_embeddings(model)]
        [3]
    """
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from plain_embeddings(layer)
        elif type(layer) is keras.layers.Embedding:
            if layer.quantization_mode is None and not layer.lora_enabled:
                yield layer


def with_quick_embeddings(
    function: Callable[[Any], Any], layers: Sequence[keras.layers.Embedding]
) -> Callable[[Any], Any]:
    """A function that looks up rows of embeddings without Keras' test for negative ids.

    Keras counts a negative id from the end of the table, by a comparison, a sum and a choice. In a
    table that stands twice, one below the other, the row of id + n is the same for all ids in
    [-n, n), and ids beyond are beyond still: TensorFlow refuses them on a CPU as it does Keras'.

    Args:
        function: A function of one argument that calls the layers.
        layers: Embedding layers whose tables, as they are now, become constants.

    Returns:
        The function, to be traced by TensorFlow. While it runs, these layers compute otherwise.

    Example:
        >>> layer = keras.layers.Embedding(3, 1, embeddings_initializer="ones")
        >>> layer.build()
        >>> with_quick_embeddings(layer, [layer])(np.array([2, -3])).numpy().tolist()
        [[1.0], [1.0]]
    """
    tables = [np.tile(ops.convert_to_numpy(layer.embeddings), (2, 1)) for layer in layers]

    def computed(argument: Any) -> Any:
        for layer, table in zip(layers, tables, strict=True):
            layer.call = partial(_look_up, layer, table)
        try:
            return function(argument)
        finally:
            for layer in layers:
                del layer.call

    return computed


def _look_up(layer: keras.layers.Embedding, twice: np.ndarray, ids: Any) -> Any:
    import tensorflow as tf

    if ids.dtype not in ("int32", "int64"):
        ids = ops.cast(ids, "int32")
    rows = tf.gather(tf.constant(twice), ids + len(twice) // 2)
    return ops.cast(rows, layer.compute_dtype)
