"""Warm-up requests, which TensorFlow Serving runs before it serves a new version."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_FILE_NAME = "tf_serving_warmup_requests"


def write_warmup(
    extra: Path, model_name: str, requests: Iterable[tuple[str, Mapping[str, Any], int]]
) -> None:
    """Writes `tf_serving_warmup_requests`: a TFRecord file of `PredictionLog` messages.

    The first request of a signature takes hundreds of times as long as the next ones; with these,
    TensorFlow Serving has it behind itself when the first user comes. Other servers ignore the
    file. The messages are those of `tensorflow_serving.apis`, written here field by field, so that
    this package is not needed.

    Args:
        extra: The folder `assets.extra` of a SavedModel.
        model_name: Name of the model, as the server knows it.
        requests: Signature, its inputs by name, and the number of rows to send: the rows given are
            repeated or cut.

    Reference:
        tensorflow/serving, `tensorflow_serving/apis/{prediction_log,predict,model}.proto`.
    """
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(extra / _FILE_NAME)) as writer:
        for signature, inputs, num_rows in requests:
            sized = {name: _with_rows(values, num_rows) for name, values in inputs.items()}
            writer.write(_prediction_log(model_name, signature, sized))


def _with_rows(values: Any, num_rows: int) -> np.ndarray:
    array = np.asarray(values)
    return np.take(array, np.arange(num_rows) % len(array), axis=0)


def _prediction_log(model_name: str, signature: str, inputs: Mapping[str, Any]) -> bytes:
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
    """A field of protocol buffers whose content has a length: tag, length, content."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """A whole number, seven bits a byte, the lowest first."""
    groups = itertools.takewhile(lambda rest: rest, (number >> 7 * k for k in itertools.count()))
    low = [rest & 0x7F for rest in groups] or [0]
    return bytes([*(group | 0x80 for group in low[:-1]), low[-1]])
