"""The ResNet and the DenseNet for small images, against their definitions."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "calibrated_metric"


def load(name):
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return getattr(module, name)


resnet, densenet = load("resnet"), load("densenet")


def num_trainable(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


@pytest.mark.parametrize(
    ("depth", "width", "channels", "batch_normalization"),
    [(8, 8, 1, True), (14, 4, 3, True), (20, 16, 3, True), (14, 6, 3, False)],
)
def test_resnet_has_the_weights_of_its_definition(depth, width, channels, batch_normalization):
    # Per channel of a convolution: scale and shift, or a bias. n blocks of two in each stage.
    extra, n = 2 if batch_normalization else 1, (depth - 2) // 6
    convolutions = [(channels, width)]
    for wide in (width, 2 * width, 4 * width):
        convolutions.append((convolutions[-1][1], wide))
        convolutions += [(wide, wide)] * (2 * n - 1)
    expected = sum(9 * old * new + extra * new for old, new in convolutions)
    expected += 4 * width * 10 + 10
    model = resnet(
        (16, 16, channels), 10, depth=depth, width=width, batch_normalization=batch_normalization
    )
    assert len(convolutions) + 1 == depth
    assert num_trainable(model) == expected
    assert model.output_shape == (None, 10)


def test_resnet_20_has_the_published_number_of_parameters():
    assert round(num_trainable(resnet((32, 32, 3), 10)) / 1e6, 2) == 0.27


def test_the_shortcuts_subsample_and_fill_with_zeros():
    model = resnet((12, 12, 2), 5, depth=14, width=3, batch_normalization=False)
    first, *others = (layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
    # Without their convolutions, the blocks are the shortcuts.
    for layer in others:
        layer.set_weights([np.zeros(weight.shape) for weight in layer.weights])
    images = np.random.default_rng(0).normal(size=(4, 12, 12, 2)).astype("float32")
    start = np.maximum(np.asarray(first(images)), 0)
    means = np.zeros((4, 12))
    means[:, :3] = start[:, ::4, ::4].mean(axis=(1, 2))
    kernel, bias = model.layers[-1].get_weights()
    np.testing.assert_allclose(
        np.asarray(model(images)), means @ kernel + bias, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("depth", "growth_rate", "bottleneck", "compression"),
    [(10, 4, True, 0.5), (16, 6, True, 0.7), (10, 5, False, 1.0), (13, 4, False, 0.5)],
)
def test_densenet_has_the_weights_of_its_definition(depth, growth_rate, bottleneck, compression):
    channels = 2 * growth_rate if bottleneck else 16
    total, num_weighted_layers = 27 * channels, 1
    for block in range(3):
        if block:
            kept = int(compression * channels)
            total += 2 * channels + channels * kept
            channels, num_weighted_layers = kept, num_weighted_layers + 1
        for _ in range((depth - 4) // (6 if bottleneck else 3)):
            total += 2 * channels
            if bottleneck:
                total += channels * 4 * growth_rate + 2 * 4 * growth_rate
            total += 9 * (4 * growth_rate if bottleneck else channels) * growth_rate
            channels += growth_rate
            num_weighted_layers += 2 if bottleneck else 1
    total += 2 * channels + channels * 10 + 10
    model = densenet(
        (16, 16, 3),
        10,
        depth=depth,
        growth_rate=growth_rate,
        bottleneck=bottleneck,
        compression=compression,
    )
    assert num_weighted_layers + 1 == depth
    assert num_trainable(model) == total


@pytest.mark.slow
def test_densenets_have_the_published_numbers_of_parameters():
    plain = densenet((32, 32, 3), 10, depth=40, bottleneck=False, compression=1.0)
    assert round(num_trainable(plain) / 1e6, 1) == 1.0
    assert round(num_trainable(densenet((32, 32, 3), 10)) / 1e6, 1) == 0.8


@pytest.mark.parametrize("build", [resnet, densenet])
def test_dropout_and_penalty(build):
    depth = {resnet: 8, densenet: 10}[build]
    images = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype("float32")
    model = build((8, 8, 1), 3, depth=depth, dropout=0.5, l2=1e-3)
    assert np.ptp([np.asarray(model(images)) for _ in range(2)], axis=0).max() == 0
    assert np.ptp([np.asarray(model(images, training=True)) for _ in range(2)], axis=0).max() > 0
    kernels = [w.numpy() for w in model.trainable_weights if w.path.endswith("kernel")]
    # A convolution for each of the other layers with weights, and the dense layer.
    assert len(kernels) == depth
    expected = 1e-3 * sum(float(np.square(kernel).sum()) for kernel in kernels)
    np.testing.assert_allclose(float(sum(model.losses)), expected, rtol=1e-5)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="6n \\+ 2"):
        resnet((8, 8, 1), 3, depth=9)
    with pytest.raises(ValueError, match="6n \\+ 4"):
        densenet((8, 8, 1), 3, depth=8)
    with pytest.raises(ValueError, match="3n \\+ 4"):
        densenet((8, 8, 1), 3, depth=4, bottleneck=False)
    with pytest.raises(ValueError, match="compression"):
        densenet((8, 8, 1), 3, depth=10, compression=0.0)
