"""Embeddings as they are served give the rows that Keras gives, and refuse what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_calibration.export.served_embeddings import plain_embeddings, with_quick_embeddings

NUM_IDS = 7


def embedding(**arguments):
    layer = keras.layers.Embedding(NUM_IDS, 3, **arguments)
    layer.build()
    return layer


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(-NUM_IDS, NUM_IDS - 1), max_size=9),
    dtype=st.sampled_from(["int32", "int64", "float32", "int8", "uint8"]),
    policy=st.sampled_from(["float32", "mixed_bfloat16"]),
    rank=st.sampled_from([1, 2]),
)
def test_it_finds_the_rows_that_keras_finds(ids, dtype, policy, rank):
    layer = embedding(dtype=policy)
    ids = np.abs(ids) % NUM_IDS if dtype == "uint8" else np.array(ids)
    values = tf.constant(np.reshape(ids, (-1, 1)[:rank]).astype(dtype))
    expected = layer(values)
    quick = tf.function(with_quick_embeddings(layer, [layer]), autograph=False)
    received = quick(values)
    assert received.dtype == expected.dtype
    np.testing.assert_array_equal(received, expected)
    np.testing.assert_array_equal(layer(values), expected)


@pytest.mark.parametrize("id_", [NUM_IDS, -NUM_IDS - 1, 2**31 - 1, -(2**31)])
def test_it_refuses_the_ids_that_keras_refuses(id_):
    layer = embedding()
    quick = tf.function(with_quick_embeddings(layer, [layer]), autograph=False)
    with tf.device("CPU:0"):
        for look_up in (layer, quick):
            with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
                look_up(tf.constant([0, id_]))


def test_the_layer_is_as_before_also_after_an_error():
    layer = embedding()
    expected = layer(np.array([1]))

    def fails(values):
        assert "call" in vars(layer)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        with_quick_embeddings(fails, [layer])(np.array([1]))
    assert "call" not in vars(layer)
    np.testing.assert_array_equal(layer(np.array([1])), expected)


class Shifted(keras.layers.Embedding):
    def call(self, inputs):
        return super().call(inputs) + 1.0


def test_only_plain_layers_are_found():
    inner = keras.Sequential([keras.Input(()), embedding(name="inner")])
    with_lora = embedding(name="lora")
    with_lora.enable_lora(2)
    inputs = keras.Input(())
    parts = [
        layer(inputs)
        for layer in (inner, with_lora, Shifted(4, 3), embedding(name="outer", mask_zero=True))
    ]
    model = keras.Model(inputs, keras.layers.Add()(parts))
    assert {layer.name for layer in plain_embeddings(model)} == {"inner", "outer"}
