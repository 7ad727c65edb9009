"""The weights of a SavedModel on disk: which are the head's, and new values for these alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def collection_keys(savedmodel: Path, collection: str) -> list[str]:
    """The keys under which the weights of a collection stand in a SavedModel's checkpoint.

    Args:
        savedmodel: Folder of the SavedModel.
        collection: Name given to `keras.export.ExportArchive.add_variable_collection`.

    Returns:
        The keys, in the order of the collection.

    Raises:
        ValueError: If there is no such collection.
    """
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(_reader(savedmodel).get_tensor(_OBJECT_GRAPH))

    def children(node: Any) -> dict[str, Any]:
        return {child.local_name: graph.nodes[child.node_id] for child in node.children}

    root = children(graph.nodes[0])
    if collection not in root:
        raise ValueError(
            f"The SavedModel at {str(savedmodel)!r} does not say which weights are the head's. "
            "Received: one that this version of `export_savedmodel` did not write. Export it again."
        )
    weights = {int(name): node for name, node in children(root[collection]).items()}
    return [weights[number].attributes[0].checkpoint_key for number in sorted(weights)]


def read_tensors(savedmodel: Path) -> dict[str, Any]:
    """All tensors of a SavedModel's checkpoint.

    Args:
        savedmodel: Folder of the SavedModel.

    Returns:
        Key → array (bytes for a single string).
    """
    reader = _reader(savedmodel)
    return {key: reader.get_tensor(key) for key in sorted(reader.get_variable_to_shape_map())}


def replace_tensors(savedmodel: Path, values: Mapping[str, np.ndarray]) -> None:
    """Writes a SavedModel's checkpoint anew with other values for some tensors.

    The graph is not touched, nor a bit of any other tensor.

    Args:
        savedmodel: Folder of the SavedModel.
        values: Key → new array, of the shape and dtype of the old one.

    Raises:
        ValueError: If a shape or a dtype is another: the graph is made for the old one.
    """
    import tensorflow as tf

    tensors = read_tensors(savedmodel)
    for key, value in values.items():
        old, new = np.asarray(tensors[key]), np.asarray(value)
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(
                f"The refitted weight {key!r} must have the shape and dtype that the SavedModel "
                f"has, {old.shape} and {old.dtype}. Received: {new.shape} and {new.dtype}. Export "
                "the model anew."
            )
    for file in (savedmodel / "variables").iterdir():
        file.unlink()
    everything = {**tensors, **values}
    tf.raw_ops.SaveV2(
        prefix=str(savedmodel / "variables" / "variables"),
        tensor_names=list(everything),
        shape_and_slices=[""] * len(everything),
        tensors=[tf.constant(value) for value in everything.values()],
    )
    write_fingerprint(savedmodel)


def write_fingerprint(savedmodel: Path) -> None:
    """Brings `fingerprint.pb`, where there is one, up to the graph and the checkpoint.

    Args:
        savedmodel: Folder of the SavedModel.
    """
    from tensorflow.python.saved_model import fingerprinting_utils

    if (savedmodel / "fingerprint.pb").is_file():
        fingerprinting_utils.write_fingerprint(str(savedmodel))


def _reader(savedmodel: Path) -> Any:
    import tensorflow as tf

    return tf.train.load_checkpoint(str(savedmodel / "variables" / "variables"))
