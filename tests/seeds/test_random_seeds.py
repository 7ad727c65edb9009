import keras
import numpy as np
import pytest

from keras_calibration.seeds import set_seeds

X = np.arange(40.0, dtype="float32").reshape(20, 2)
Y = (np.arange(20) % 3 == 0).astype("float32")[:, None]


class Order(keras.layers.Layer):
    """Lets through what it sees, and keeps a moving value that depends on the order alone."""

    def build(self, input_shape):
        self.trace = self.add_weight(shape=(), trainable=False, initializer="zeros")

    def call(self, inputs):
        self.trace.assign(0.5 * self.trace + keras.ops.sum(inputs))
        return inputs


def train(initialization, order):
    """The first weights, the trace of the order of the rows, and the last weights."""
    keras.backend.clear_session()
    set_seeds(initialization=initialization, order=order)
    model = keras.Sequential(
        [keras.Input((2,)), Order(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(1e-4), run_eagerly=False)
    dense, trace = model.layers[-1], model.layers[0].trace
    first = dense.kernel.numpy().tolist()
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    return first, float(trace.numpy()), dense.kernel.numpy().tolist()


@pytest.mark.slow
def test_the_seeds_act_apart():
    base = train(1, 1)
    assert train(1, 1) == base
    other_order = train(1, 2)
    assert other_order[0] == base[0]
    assert other_order[1] != base[1]
    other_weights = train(2, 1)
    assert other_weights[0] != base[0]
    assert other_weights[1] == base[1]


def test_seeds_of_numpy_are_plain_ints():
    (first,) = np.random.SeedSequence(5).generate_state(1)
    seeds = set_seeds(initialization=first, order=np.int64(2))
    assert seeds == {"initialization": int(first), "order": 2}
    assert {type(seed) for seed in seeds.values()} == {int}


def test_refuses_what_is_no_seed():
    with pytest.raises(ValueError, match=r"order=0\.5"):
        set_seeds(initialization=1, order=0.5)
    for seed in (-1, np.int64(-1), True, np.uint64(2**32), None):
        with pytest.raises(ValueError, match="`initialization` must"):
            set_seeds(initialization=seed, order=0)
