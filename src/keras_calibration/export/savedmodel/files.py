"""Reads and writes the weights of a SavedModel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_calibration._keras import write_fingerprint

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The folder of a SavedModel for files that TensorFlow does not read.
EXTRA = "assets.extra"


def collection_keys(savedmodel: Path, collection: str) -> list[str]:
    """Checkpoint keys of the weights of a variable collection, in its order."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    # A checkpoint holds the graph of its objects: walk from the root to the collection, whose
    # entries are named by their numbers.
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(_open_checkpoint(savedmodel).get_tensor(_OBJECT_GRAPH))

    def children(node: Any) -> dict[str, Any]:
        return {child.local_name: graph.nodes[child.node_id] for child in node.children}

    weights = children(children(graph.nodes[0])[collection])
    return [weights[name].attributes[0].checkpoint_key for name in sorted(weights, key=int)]


def replace_tensors(savedmodel: Path, values: Mapping[str, np.ndarray]) -> None:
    """Rewrites a SavedModel's checkpoint with new values, of the same shapes, for some tensors.

    The graph and all other tensors stay the same, bit for bit.
    """
    import tensorflow as tf

    dtypes = _open_checkpoint(savedmodel).get_variable_to_dtype_map()
    prefix = str(savedmodel / "variables" / "variables")
    names = sorted(dtypes)
    slices = [""] * len(names)  # all of each tensor
    # From tensor to tensor: an embedding may take gigabytes, which arrays would double.
    tensors = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=slices,
        dtypes=[dtypes[name] for name in names],
    )
    tensors = [
        tf.constant(values[name], dtypes[name]) if name in values else old
        for name, old in zip(names, tensors, strict=True)
    ]
    for file in (savedmodel / "variables").iterdir():
        file.unlink()
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=tensors)
    write_fingerprint(str(savedmodel))


def _open_checkpoint(savedmodel: Path) -> Any:
    import tensorflow as tf

    return tf.train.load_checkpoint(str(savedmodel / "variables" / "variables"))
