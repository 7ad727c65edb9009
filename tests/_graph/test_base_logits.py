import keras
import numpy as np
import pytest

from keras_calibration._graph.base_logits import BaseLogits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype("float32")
KERNEL = np.array([[1.0], [-2.0], [1.5]], "float32")


@keras.saving.register_keras_serializable(package="tests")
class Doubling(keras.layers.Dense):
    """A layer that computes something else than a `Dense` with its kernel does."""

    def call(self, inputs, training=None):
        return super().call(2 * inputs)


def dense(activation=None, **arguments):
    bias = keras.initializers.Constant(0.25)
    return keras.layers.Dense(1, activation, bias_initializer=bias, **arguments)


def functional(*layers):
    inputs = keras.Input((3,))
    output = inputs
    for layer in layers:
        output = layer(output)
    model = keras.Model(inputs, output)
    model.layers[1].kernel.assign(KERNEL)
    return model


def sequential(*layers):
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.layers[0].kernel.assign(KERNEL)
    return model


@keras.saving.register_keras_serializable(package="tests")
def own_sigmoid(values):
    return 1 / (1 + keras.ops.exp(-values))


def nested(model, by_name=False):
    """The model as the only layer of another one, as in the advice for subclassed models."""
    inputs = keras.Input((3,))
    return keras.Model(inputs, model(inputs=inputs) if by_name else model(inputs))


def shared_sigmoid():
    last = keras.layers.Activation("sigmoid")
    last(keras.Input((1,)))
    return functional(dense(), last)


def flat(*layers):
    return functional(*layers, keras.layers.Reshape(()))


MODELS = {
    "dense with sigmoid": (lambda: functional(dense("sigmoid")), "auto"),
    "dense without bias": (lambda: functional(dense("sigmoid", use_bias=False)), "auto"),
    "activation layer": (lambda: functional(dense(), keras.layers.Activation("sigmoid")), "auto"),
    "operation": (lambda: functional(dense(), keras.ops.sigmoid), "auto"),
    "activation function": (lambda: functional(dense(), keras.activations.sigmoid), "auto"),
    "logit": (lambda: functional(dense()), "auto"),
    "logit, told": (lambda: functional(dense(), keras.layers.Reshape((1,))), "logit"),
    "flat logit": (lambda: flat(dense()), "logit"),
    "sequential": (lambda: sequential(dense("sigmoid")), "auto"),
    "sequential, activation": (
        lambda: sequential(dense(), keras.layers.Activation("sigmoid")),
        "auto",
    ),
    "sequential logit": (lambda: sequential(dense()), "auto"),
    "linear activation": (lambda: functional(dense(), keras.layers.Activation("linear")), "auto"),
    "sigmoid of keras.ops": (lambda: functional(dense(keras.ops.sigmoid)), "auto"),
    "sigmoid of one's own": (lambda: functional(dense(own_sigmoid)), "auto"),
    "flattened": (lambda: functional(dense("sigmoid"), keras.layers.Flatten()), "auto"),
    "reshaped": (lambda: flat(dense("sigmoid")), "auto"),
    "squeezed": (lambda: functional(dense("sigmoid"), lambda p: keras.ops.squeeze(p, 1)), "auto"),
    "float32 output": (
        lambda: functional(dense("sigmoid"), keras.layers.Activation("linear", dtype="float32")),
        "auto",
    ),
    "shared sigmoid": (shared_sigmoid, "auto"),
    "nested": (lambda: nested(functional(dense("sigmoid"))), "auto"),
    "nested twice": (
        lambda: nested(nested(sequential(dense(), keras.layers.Activation("sigmoid")))),
        "auto",
    ),
    "nested, called by name": (lambda: nested(functional(dense("sigmoid")), True), "auto"),
    "nested logit": (lambda: nested(sequential(dense())), "auto"),
    "nested in a Sequential": (
        lambda: keras.Sequential([keras.Input((3,)), sequential(dense("sigmoid"))]),
        "auto",
    ),
    "sigmoid, told": (lambda: functional(dense("sigmoid")), "probability"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_logits_are_those_before_the_sigmoid(name, scale):
    make, base_output = MODELS[name]
    model = make()
    layer = BaseLogits(model, base_output)
    # Logits as far out as ±40: the float32 sigmoid is exactly 1 from about 17 on.
    pre_activation = scale * X.astype("float64") @ KERNEL
    pre_activation += 0.0 if name == "dense without bias" else 0.25
    np.testing.assert_allclose(layer(scale * X), pre_activation, rtol=1e-5, atol=1e-5)
    assert np.abs(pre_activation).max() > (30 if scale == 10 else 1)


def test_probability_of_a_last_layer_that_is_not_known():
    model = functional(dense("sigmoid"), lambda p: keras.ops.clip(p, 1e-9, 1))
    with pytest.raises(ValueError, match="base_output="):
        BaseLogits(model)
    np.testing.assert_allclose(
        BaseLogits(model, "probability")(X), X @ KERNEL + 0.25, rtol=1e-4, atol=1e-5
    )


def class_model(*layers, activation=None, num_classes=3):
    """A model of several classes."""
    return functional(dense(), keras.layers.Dense(num_classes, activation), *layers)


@keras.saving.register_keras_serializable(package="tests")
def own_softmax(values):
    return keras.ops.exp(values) / keras.ops.sum(keras.ops.exp(values), axis=1, keepdims=True)


CLASS_MODELS = {
    "dense with softmax": (lambda: class_model(activation="softmax"), "auto"),
    "activation layer": (lambda: class_model(keras.layers.Activation("softmax")), "auto"),
    "softmax layer": (lambda: class_model(keras.layers.Softmax()), "auto"),
    "operation": (lambda: class_model(keras.ops.softmax), "auto"),
    "logits": (lambda: class_model(), "auto"),
    "log probabilities": (lambda: class_model(keras.ops.log_softmax), "logit"),
    "float32 output": (
        lambda: class_model(keras.layers.Activation("linear"), activation="softmax"),
        "auto",
    ),
    "nested": (lambda: nested(class_model(activation="softmax")), "auto"),
    "clipped, told": (
        lambda: class_model(lambda p: keras.ops.clip(p, 0, 1), activation="softmax", num_classes=2),
        "probability",
    ),
    "of one's own, told": (lambda: class_model(activation=own_softmax), "probability"),
}


@pytest.mark.parametrize("name", CLASS_MODELS)
def test_class_logits_are_those_before_the_softmax(name):
    make, base_output = CLASS_MODELS[name]
    keras.utils.set_random_seed(0)
    model = make()
    inner = model.layers[-1] if name == "nested" else model
    last = next(layer for layer in inner.layers[::-1] if isinstance(layer, keras.layers.Dense))
    kernel, bias = map(keras.ops.convert_to_numpy, last.get_weights())
    layer = BaseLogits(model, base_output)
    logits = layer(X)
    assert (layer.compute_output_shape(X.shape), tuple(logits.shape)) == (
        (None, bias.size),
        (40, bias.size),
    )
    expected = (X @ KERNEL + 0.25) @ kernel + bias
    # Probabilities know their logits but for a constant of each row.
    received = keras.ops.convert_to_numpy(logits)
    if name in ("log probabilities", "clipped, told", "of one's own, told"):
        received, expected = (rows - rows.mean(1, keepdims=True) for rows in (received, expected))
    np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-4)


def test_sigmoids_of_several_outputs_are_no_classes():
    base_model = class_model(activation="sigmoid", num_classes=2)
    with pytest.raises(ValueError, match=r"base model must.*2 sigmoids") as refused:
        BaseLogits(base_model)
    advice = str(refused.value).split("for example ")[1].split(" with ")[0]
    one = eval(advice, {"keras": keras, "base_model": base_model})
    logits = BaseLogits(one, "probability")(X)
    np.testing.assert_allclose(keras.ops.sigmoid(logits), base_model(X)[:, :1], atol=1e-6)


def test_a_softmax_over_rows_is_not_taken_for_one_over_classes():
    with pytest.raises(ValueError, match="Cannot infer"):
        BaseLogits(class_model(keras.layers.Softmax(axis=0)))


@pytest.mark.parametrize(
    ("make", "base_output"),
    [
        (lambda: functional(dense("sigmoid")), "logit"),
        (lambda: class_model(activation="softmax"), "logit"),
        (lambda: class_model(), "probability"),
        (lambda: nested(functional(dense(), keras.ops.sigmoid)), "logit"),
        (lambda: functional(dense()), "probability"),
    ],
)
def test_a_base_output_that_the_last_layer_contradicts_is_refused(make, base_output):
    with pytest.raises(ValueError, match=f"Received: base_output='{base_output}'"):
        BaseLogits(make(), base_output)


def test_an_activation_with_weights_is_not_called():
    slope = keras.layers.PReLU()
    model = functional(keras.layers.Dense(1, activation=slope))
    num_weights = len(model.weights)
    with pytest.raises(ValueError, match="base_output="):
        BaseLogits(model)
    assert len(model.weights) == num_weights


@pytest.mark.parametrize("base_output", ["logit", "probability"])
def test_the_advice_for_a_subclassed_model_works(base_output):
    base_model = Subclassed("sigmoid" if base_output == "probability" else None)
    with pytest.raises(ValueError, match=f'Pass .*base_output="{base_output}"'):
        BaseLogits(base_model)
    layer = BaseLogits(nested(base_model), base_output)
    kernel, bias = map(keras.ops.convert_to_numpy, base_model.dense.get_weights())
    np.testing.assert_allclose(layer(X), X @ kernel + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Sigmoid", "Softmax"])
def test_a_layer_is_not_known_by_its_name(name):
    computed = {"call": lambda self, x: keras.ops.sigmoid(x / 4), "axis": -1}
    columns = [keras.layers.Dense(1), keras.layers.Dense(3)][: 1 if name == "Sigmoid" else 2]
    with pytest.raises(ValueError, match="base_output="):
        BaseLogits(functional(*columns, type(name, (keras.layers.Layer,), computed)()))


def test_a_subclass_of_dense_is_not_taken_for_a_dense():
    model = functional(Doubling(1, "sigmoid"))
    with pytest.raises(ValueError, match="base_output="):
        BaseLogits(model)
    np.testing.assert_allclose(
        BaseLogits(model, "probability")(X / 4), X @ KERNEL / 2, rtol=1e-4, atol=1e-5
    )


def test_a_quantized_dense_is_not_taken_for_a_dense():
    model = functional(dense("sigmoid"))
    model.layers[-1].quantize("int8")
    with pytest.raises(ValueError, match="base_output="):
        BaseLogits(model)
    logits = BaseLogits(model, "probability")(X)
    np.testing.assert_allclose(keras.ops.sigmoid(logits), model(X), atol=1e-6)


def test_base_is_frozen_and_in_inference_mode():
    model = functional(
        dense(), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), dense("sigmoid")
    )
    layer = BaseLogits(model)
    assert layer.trainable_variables == model.trainable_variables == []
    before = model.get_weights()
    logits = layer(X, training=True)
    np.testing.assert_allclose(keras.ops.sigmoid(logits), model(X, training=False), atol=1e-6)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


class Subclassed(keras.Model):
    def __init__(self, activation="sigmoid"):
        super().__init__()
        self.dense = dense(activation)

    def call(self, inputs):
        return self.dense(inputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Subclassed, "subclassed"),
        (lambda: keras.Sequential([dense("sigmoid")]), "base_output="),
        (lambda: functional(dense(), keras.layers.Reshape((1, 1))), r"\(None, 1, 1\)"),
        (lambda: class_model(keras.layers.Reshape((3, 1))), r"\(None, 3, 1\)"),
        (lambda: dense("sigmoid"), "`base_model` must.*Dense"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        BaseLogits(make())


def test_a_bad_base_output_is_refused():
    with pytest.raises(ValueError, match="base_output='odds'"):
        BaseLogits(functional(dense()), "odds")


def test_config_makes_the_same_layer():
    model = functional(dense("sigmoid"))
    layer = BaseLogits(model, "probability", name="base")
    again = BaseLogits.from_config(layer.get_config())
    again.base_model.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(X), layer(X))
    assert (again.name, again.base_output, again.trainable) == ("base", "probability", False)
