"""The warm-up requests are messages of TensorFlow Serving, and the signatures can answer them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import tensor_pb2

import keras_calibration as kc

# The fields of `tensorflow_serving.apis` that a request has: name, number, type.
MESSAGES = {
    "ModelSpec": [("name", 1, "string"), ("signature_name", 3, "string")],
    "Input": [("key", 1, "string"), ("value", 2, ".tensorflow.TensorProto")],
    "PredictRequest": [
        ("model_spec", 1, ".served.ModelSpec"),
        ("inputs", 2, ".served.Input"),
    ],
    "PredictLog": [("request", 1, ".served.PredictRequest")],
    "PredictionLog": [("predict_log", 6, ".served.PredictLog")],
}


@pytest.fixture(scope="module")
def prediction_log():
    """The class of the messages, from their description."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="served.proto", package="served", dependency=[tensor_pb2.DESCRIPTOR.name]
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            repeated = field == "inputs"
            message.field.add(
                name=field,
                number=number,
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_STRING if kind == "string" else kinds.TYPE_MESSAGE,
                type_name=None if kind == "string" else kind,
            )
    pool = descriptor_pool.Default()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("served.PredictionLog")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # protobuf before 4.22


@pytest.fixture(scope="module")
def model():
    inputs = {
        "site": keras.Input((), dtype="string", name="site"),
        "class": keras.Input((2,), dtype="int64", name="class"),
    }
    numbers = keras.ops.cast(inputs["class"], "float32")
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(numbers))
    lookup = keras.layers.StringLookup(vocabulary=["news"])
    return kc.models.CalibratedModel(base, kc.layers.FieldBias({"site": lookup}))


SAMPLE = {"site": np.array(["news", "", "\N{SNOWMAN}" * 200]), "class": np.arange(6).reshape(3, 2)}


def test_requests_are_read_and_answered(model, prediction_log, tmp_path):
    path = kc.export_savedmodel(model, tmp_path / "ctr" / "1", SAMPLE, verify="same_process")
    loaded = tf.saved_model.load(str(path))
    file = path / "assets.extra" / "tf_serving_warmup_requests"
    seen = []
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        log = prediction_log.FromString(record)
        # Nothing in it is unknown: written again it is the same.
        assert log.SerializeToString(deterministic=True) == record
        spec = log.predict_log.request.model_spec
        assert spec.name == "ctr"
        inputs = {e.key: tf.make_ndarray(e.value) for e in log.predict_log.request.inputs}
        signature = loaded.signatures[spec.signature_name]
        outputs = signature(**{name: tf.constant(values) for name, values in inputs.items()})
        seen.append((spec.signature_name, len(outputs[min(outputs)])))
        if seen[-1] == ("serving_default", 32):
            # The rows of the sample, from the start again where they end.
            sites = [SAMPLE["site"][number % 3] for number in range(32)]
            assert [site.decode() for site in inputs["site"]] == sites
            assert inputs["class_"].dtype == np.int64
            np.testing.assert_array_equal(inputs["class_"], SAMPLE["class"][np.arange(32) % 3])
    assert seen == [("serving_default", 1), ("serving_default", 32), ("raw", 1), ("calibrate", 1)]
