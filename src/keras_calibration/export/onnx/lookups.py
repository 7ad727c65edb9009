"""Lookup layers of Keras in an ONNX file: `LabelEncoder`s with the layers' vocabularies."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from keras_calibration._typing import Tensor
from keras_calibration.export.onnx.operators import Handlers

# First version of the operators of ONNX-ML in which LabelEncoder maps strings to whole numbers.
ML_DOMAIN, ML_OPSET = "ai.onnx.ml", 2
_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
_SCOPE = "onnx_lookup_"


def why_not(layer: keras.layers.Layer) -> str | None:
    """Why a layer cannot be a `LabelEncoder`; None if it can.

    Example:
        >>> why_not(keras.layers.StringLookup(vocabulary=["a"]))
        >>> why_not(keras.layers.StringLookup(vocabulary=["a"], num_oov_indices=2))
        'has num_oov_indices=2'
    """
    if not isinstance(layer, _LOOKUPS):
        return f"is a {type(layer).__name__}"
    if layer.invert:
        return "is inverted"
    if layer.num_oov_indices != 1:
        return f"has num_oov_indices={layer.num_oov_indices}"
    if getattr(layer, "encoding", "utf-8").lower().replace("_", "-") != "utf-8":
        return f"has encoding={layer.encoding!r}"
    return None


@contextlib.contextmanager
def label_encoders(layers: Iterable[keras.layers.Layer]) -> Iterator[Handlers]:
    """Yields handlers for tf2onnx that write the lookups of a graph traced inside the block.

    The converter cannot see the tables of a Keras model, because functions capture them. So the
    block traces each lookup under a name that identifies its vocabulary. A `LabelEncoder` replaces
    the lookup, and also does what the layer does around it (masks, unknown values).
    """
    lookups = list({id(layer): layer for layer in layers if isinstance(layer, _LOOKUPS)}.values())
    tables = [_build_table(layer) for layer in lookups]

    def write(context: Any, node: Any, name: str, arguments: object) -> None:
        match = re.search(rf"{_SCOPE}(\d+)_", node.name)
        if match is None:
            raise ValueError(f"the lookup {node.name!r} is no StringLookup or IntegerLookup")
        # The inputs of a lookup in TensorFlow: the table, the values, and the default.
        values = node.input[1]
        output = list(node.output)
        shape = context.get_shape(values)
        context.remove_node(node.name)
        context.make_node(
            "LabelEncoder",
            [values],
            name=node.name,
            outputs=output,
            domain=ML_DOMAIN,
            attr=tables[int(match[1])],
            shapes=[shape],
            dtypes=[context.get_dtype(output[0])],
        )

    with contextlib.ExitStack() as at_end:
        for number, layer in enumerate(lookups):
            # Keras has no public name for it. `_lookup_dense` is the part of `IndexLookup.call`
            # that turns values into ids; the operations around it are dropped.
            named = functools.partial(_find_ids, layer, f"{_SCOPE}{number}_")
            object.__setattr__(layer, "_lookup_dense", named)
            at_end.callback(object.__delattr__, layer, "_lookup_dense")
        yield {"LookupTableFindV2": write}


def _build_table(layer: keras.layers.Layer) -> dict[str, Any]:
    """The attributes of the encoder: the position of each token in the vocabulary."""
    # The mask token comes first in a vocabulary, then the token for unknown values, which is the
    # default of the encoder and no key.
    unknown = 0 if layer.mask_token is None else 1
    tokens = {t: place for place, t in enumerate(layer.get_vocabulary()) if place != unknown}
    is_text = isinstance(layer, keras.layers.StringLookup)
    keys = [str(key) if is_text else int(key) for key in tokens]
    return {
        "keys_strings" if is_text else "keys_int64s": keys,
        "values_int64s": list(tokens.values()),
        "default_int64": unknown,
    }


def _find_ids(layer: keras.layers.Layer, name: str, values: Tensor) -> Tensor:
    """The ids of values in the table of a layer, by an operation of this name."""
    import tensorflow as tf

    with tf.name_scope(name):
        return layer.lookup_table.lookup(values)
