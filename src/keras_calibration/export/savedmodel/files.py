"""Reads and writes files of a SavedModel: its weights, and warm-up requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_calibration._keras import write_fingerprint
from keras_calibration.export.publish import Request

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The folder of a SavedModel in which TensorFlow Serving looks for warm-up requests.
EXTRA = "assets.extra"
_WARMUP_FILE = "tf_serving_warmup_requests"


def collection_keys(savedmodel: Path, collection: str) -> list[str]:
    """Checkpoint keys of the weights of a variable collection, in its order.

    Args:
        savedmodel: Folder of the SavedModel.
        collection: Name passed to `keras.export.ExportArchive.add_variable_collection`.
    """
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(_reader(savedmodel).get_tensor(_OBJECT_GRAPH))

    def children(node: Any) -> dict[str, Any]:
        return {child.local_name: graph.nodes[child.node_id] for child in node.children}

    collected = children(children(graph.nodes[0])[collection])
    weights = {int(name): node for name, node in collected.items()}
    return [weights[number].attributes[0].checkpoint_key for number in sorted(weights)]


def read_tensors(
    savedmodel: Path, keys: Iterable[str] | None = None
) -> dict[str, np.ndarray | bytes]:
    """Tensors of a SavedModel's checkpoint, by default all: key → array (bytes for a string)."""
    reader = _reader(savedmodel)
    if keys is None:
        keys = sorted(reader.get_variable_to_shape_map())
    return {key: reader.get_tensor(key) for key in keys}


def replace_tensors(savedmodel: Path, values: Mapping[str, np.ndarray]) -> None:
    """Rewrites a SavedModel's checkpoint with new values for some tensors.

    The graph and all other tensors stay the same, bit for bit.

    Args:
        savedmodel: Folder of the SavedModel.
        values: Key → new array, of the shape and dtype of the old one.

    Raises:
        ValueError: If a shape or dtype differs: the graph requires the old one.
    """
    import tensorflow as tf

    reader = _reader(savedmodel)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    for key, value in values.items():
        new = np.asarray(value)
        old_shape, old_dtype = tuple(shapes[key]), dtypes[key].as_numpy_dtype
        if (old_shape, np.dtype(old_dtype)) != (new.shape, new.dtype):
            raise ValueError(
                f"The refitted weight {key!r} must have the shape and dtype of the weight in the "
                f"SavedModel, {old_shape} and {np.dtype(old_dtype)}. Received: {new.shape} and "
                f"{new.dtype}. Export the model again."
            )
    prefix, names = str(savedmodel / "variables" / "variables"), sorted(shapes)
    whole = [""] * len(names)
    # From tensor to tensor: an embedding may take gigabytes, which arrays would double.
    tensors = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=whole,
        dtypes=[dtypes[name] for name in names],
    )
    tensors = [
        tf.constant(values[name]) if name in values else old
        for name, old in zip(names, tensors, strict=True)
    ]
    for file in (savedmodel / "variables").iterdir():
        file.unlink()
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=whole, tensors=tensors)
    write_fingerprint(str(savedmodel))


def _reader(savedmodel: Path) -> Any:
    import tensorflow as tf

    return tf.train.load_checkpoint(str(savedmodel / "variables" / "variables"))


def write_warmup(extra: Path, model_name: str, requests: Iterable[tuple[Request, int]]) -> None:
    """Writes `tf_serving_warmup_requests`: a TFRecord file of `PredictionLog` messages.

    The first request to a signature takes hundreds of times longer than later ones. TensorFlow
    Serving runs these requests before it serves a new version; other servers ignore the file. The
    messages are those of `tensorflow_serving.apis`, encoded here field by field, so that the
    package is not needed.

    Args:
        extra: The folder `assets.extra` of a SavedModel.
        model_name: Name of the model on the server.
        requests: Requests, each with the number of rows to send. Its inputs are repeated or cut
            to this number.

    Reference:
        tensorflow/serving, `tensorflow_serving/apis/{prediction_log,predict,model}.proto`.
    """
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(extra / _WARMUP_FILE)) as writer:
        for request, num_rows in requests:
            columns = {name: np.asarray(values) for name, values in request.inputs.items()}
            sized = {
                name: np.take(column, np.arange(num_rows) % len(column), axis=0)
                for name, column in columns.items()
            }
            writer.write(_prediction_log(model_name, request.signature, sized))


def _prediction_log(model_name: str, signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    import tensorflow as tf

    # PredictionLog.predict_log = 6, PredictLog.request = 1; PredictRequest.model_spec = 1,
    # .inputs = 2 (a map: key = 1, value = 2); ModelSpec.name = 1, .signature_name = 3.
    spec = _field(1, model_name.encode()) + _field(3, signature.encode())
    entries = (
        _field(1, name.encode()) + _field(2, tf.make_tensor_proto(values).SerializeToString())
        for name, values in inputs.items()
    )
    request = _field(1, spec) + b"".join(_field(2, entry) for entry in entries)
    return _field(6, _field(1, request))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protocol buffer field: tag, length, content."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """A protocol buffer varint: seven bits per byte, lowest first."""
    groups = itertools.takewhile(lambda rest: rest, (number >> 7 * k for k in itertools.count()))
    low = [rest & 0x7F for rest in groups] or [0]
    return bytes([*(group | 0x80 for group in low[:-1]), low[-1]])
