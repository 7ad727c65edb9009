"""A server for tests: signatures of a SavedModel, called in processes that know only TensorFlow."""

import json
import subprocess
import sys

import keras
import numpy as np

# Answers every request, whatever happened to the one before it.
_PROGRAM = """
import json, sys
import numpy as np

for module in ("keras", "keras_calibration", "calibration_records", "tf_keras"):
    sys.modules[module] = None  # cannot be imported
import tensorflow as tf

loaded = tf.saved_model.load(sys.argv[1])

def answer(request):
    signature = loaded.signatures[request["signature"]]
    _, specs = signature.structured_input_signature
    inputs = {}
    for name, values in request["inputs"].items():
        # In the signature an odd character of a name is a `_`.
        spec = specs.get(name.replace("-", "_"))
        values = [np.nan if v is None else v for v in values]
        inputs[name] = tf.constant(values, spec and spec.dtype)
        if spec is not None:
            inputs[name] = tf.reshape(inputs[name], [-1, *spec.shape[1:]])
    return {name: value.numpy()[:, 0].tolist() for name, value in signature(**inputs).items()}

answers = []
for request in json.load(sys.stdin):
    try:
        answers.append(answer(request))
    except Exception as error:
        answers.append({"error": f"{type(error).__name__}: {error}"})
print(json.dumps(answers))
"""


def symbolic_inputs(site_dtype):
    """Inputs of a model: a site, whole numbers under a keyword's name, and a price.

    Returns:
        The inputs by name, and the price as a column with 0 where it is missing.
    """
    inputs = {
        "site": keras.Input((), dtype=site_dtype, name="site"),
        "class": keras.Input((1,), dtype="int64", name="class"),
        "bid-price": keras.Input((), name="bid-price"),
    }
    price = keras.ops.expand_dims(inputs["bid-price"], 1)
    return inputs, keras.ops.where(keras.ops.isnan(price), 0.0, price)


def tensors_of(rows):
    """Columns as tensors; objects are strings."""
    return {
        name: keras.ops.convert_to_tensor(v.tolist() if v.dtype == object else v)
        for name, v in rows.items()
    }


def answers(path, requests):
    """What one new process answers to requests (inputs by name, name of the signature).

    An answer has arrays by the names of the outputs, or under "error" what was raised.
    """
    plain = [
        {"signature": name, "inputs": {k: _plain(column) for k, column in inputs.items()}}
        for inputs, name in requests
    ]
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    done = subprocess.run(command, input=json.dumps(plain), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [
        {name: v if name == "error" else np.array(v) for name, v in answer.items()}
        for answer in json.loads(done.stdout.splitlines()[-1])
    ]


def outputs_of(path, rows, signature="serving_default"):
    """What the SavedModel gives for some rows in this process, which is quicker."""
    import tensorflow as tf

    function = tf.saved_model.load(str(path)).signatures[signature]
    specs = {spec.name: spec for spec in function.structured_input_signature[1].values()}
    inputs = {
        name: tf.reshape(
            tf.convert_to_tensor(column, specs[name].dtype), [-1, *specs[name].shape[1:]]
        )
        for name, column in rows.items()
    }
    return {name: values.numpy() for name, values in function(**inputs).items()}


def serve_here(path, rows, signature="serving_default"):
    """The same without the last axis."""
    return {name: values[:, 0] for name, values in outputs_of(path, rows, signature).items()}


def provenance_of(path):
    """What is told of an export beside it."""
    return json.loads((path / "assets.extra" / "provenance.json").read_text())


def serve_as_c(path, signature="serving_default"):
    """A function that runs a signature as C and TensorFlow Serving do.

    It takes inputs by name, at whose shapes nothing looks before the graph does, and gives outputs
    by name.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
    definition = loaded.signature_def[signature]
    inputs, outputs = definition.inputs, definition.outputs
    options = config_pb2.CallableOptions()
    options.feed.extend(inputs[name].name for name in inputs)
    options.fetch.extend(outputs[name].name for name in outputs)
    call = session._make_callable_from_options(options)

    def run(columns):
        dtypes = {name: tf.as_dtype(inputs[name].dtype).as_numpy_dtype for name in inputs}
        return dict(
            zip(outputs, call(*(np.asarray(columns[n], dtypes[n]) for n in inputs)), strict=True)
        )

    return run


def _plain(column):
    values = [v.decode() if isinstance(v, bytes) else v for v in np.ravel(column).tolist()]
    return [None if v != v else v for v in values]
