"""TensorFlow Serving's REST form, with a session in the server's place."""

import json
from pathlib import Path

import tensorflow as tf
from tensorflow.python.tools import saved_model_cli

from served import serve_as_c


def answer(path: Path, body: str) -> str:
    """The JSON that answers a request to `…:predict` of the SavedModel in `path`.

    By the rules of the server's `json_tensor.cc`: a request has columns ("inputs") or rows
    ("instances"), and the answer likewise; each value has the type of its tensor, so that 3.0 is
    no id and null is no number; the name of an only output is left out.

    Raises:
        TypeError: If a value is not of its tensor's type.
    """
    request = json.loads(body)
    signature = request.pop("signature_name", "serving_default")
    ((form, content),) = request.items()
    columns = content
    if form == "instances":
        columns = {name: [row[name] for row in content] for name in content[0]}
    definition = saved_model_cli.get_signature_def_map(str(path), "serve")[signature]
    for name, values in columns.items():
        _check(values, tf.as_dtype(definition.inputs[name].dtype))
    outputs = serve_as_c(path, signature)(columns)
    named = {name: values.tolist() for name, values in outputs.items()}
    result: object = named
    if len(named) == 1:
        (result,) = named.values()
    elif form == "instances":
        result = [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
    return json.dumps({"predictions" if form == "instances" else "outputs": result})


def _check(values: object, dtype: tf.DType) -> None:
    if isinstance(values, list):
        for value in values:
            _check(value, dtype)
        return
    kinds = (str,) if dtype == tf.string else (int,) if dtype.is_integer else (int, float)
    if not isinstance(values, kinds) or isinstance(values, bool):
        raise TypeError(f"JSON value {json.dumps(values)} is not of type {dtype.name}")
