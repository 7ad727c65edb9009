"""Weights as constants of a SavedModel's graph, and new values for those of the head.

A variable is read for every request, and what is made of it made again; what is made of a constant,
TensorFlow works out when it loads the graph. Large weights stay variables alone: every signature
has its own copy of a constant, and a graph holds two gigabytes at most.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

# Of float32 numbers, four megabytes.
_MAX_TOTAL_SIZE = 2**20
_NAME = re.compile(r"(?:^|/)head_weight_(\d+)(?:_\d+)?$")


def small_weights(weights: Iterable[Any]) -> list[Any]:
    """The weights that may be constants: the smallest, up to four megabytes of them.

    Args:
        weights: Keras variables.

    Returns:
        Those of them, the smallest first.

    Example:
        >>> small, large = keras.Variable(np.zeros(3)), keras.Variable(np.zeros(2**21))
        >>> [weight is small for weight in small_weights([large, small])]
        [True]
    """
    by_size = sorted(weights, key=lambda weight: math.prod(weight.shape))
    totals = itertools.accumulate(math.prod(weight.shape) for weight in by_size)
    pairs = zip(by_size, totals, strict=True)
    return [weight for weight, total in pairs if total <= _MAX_TOTAL_SIZE]


def with_constants(
    function: Callable[[Any], Any], weights: Iterable[Any], head_weights: Sequence[Any] = ()
) -> Callable[[Any], Any]:
    """A function that computes with constants in place of weights.

    Args:
        function: A function of one argument that calls Keras layers.
        weights: Weights whose values now are to be constants.
        head_weights: All weights of the head; those among `weights` get names by which
            `replace_constants` finds them.

    Returns:
        The function, to be traced by TensorFlow.

    Example:
        >>> import tensorflow as tf
        >>> layer = keras.layers.Dense(2)
        >>> layer.build((None, 3))
        >>> function = tf.function(with_constants(layer, layer.weights), autograph=False)
        >>> len(function.get_concrete_function(tf.TensorSpec((None, 3))).variables)
        0
    """
    import tensorflow as tf

    numbers = {id(weight): number for number, weight in enumerate(head_weights)}
    values = []
    for weight in weights:
        name = f"head_weight_{numbers[id(weight)]}" if id(weight) in numbers else "weight"
        values.append((weight, name, ops.convert_to_numpy(weight)))

    def computed(argument: Any) -> Any:
        constants = [(weight, tf.constant(value, name=name)) for weight, name, value in values]
        with keras.StatelessScope(constants):
            return function(argument)

    return computed


def replace_constants(savedmodel: Path, values: Sequence[np.ndarray]) -> None:
    """Gives those weights of the head that are constants of the graph other values.

    Args:
        savedmodel: Folder of the SavedModel.
        values: The new values of all weights of the head, each of the old shape and dtype.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    path = savedmodel / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            found = _NAME.search(node.name) if node.op == "Const" else None
            if found:
                tensor = tf.make_tensor_proto(values[int(found[1])])
                node.attr["value"].tensor.CopyFrom(tensor)
    path.write_bytes(saved.SerializeToString(deterministic=True))
