"""The DenseNet of Huang et al. in its form for CIFAR-10, in plain Keras layers."""

from collections.abc import Sequence
from typing import Any

import keras


def densenet(
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth_rate: int = 32,
    l2: float = 0.0,
) -> keras.Model:
    """A densely connected network that returns logits, by default DenseNet-121.

    A 3 × 3 convolution of 2k channels, then dense blocks with a transition between them, then
    global average pooling and a dense layer. A layer of a block sees the concatenated outputs of
    all earlier layers of the block. It has a 1 × 1 convolution of 4k channels and a 3 × 3 one of k.
    A transition halves the channels and the image. Batch normalization and ReLU precede every other
    convolution. It is the form of the code that Fan et al. use
    (github.com/kuangliu/pytorch-cifar). Blocks of 16, 16 and 16 layers are DenseNet-BC (L=100).

    Args:
        image_shape: Height, width and channels of the images.
        num_classes: Number of classes.
        blocks: Number of layers of each block.
        growth_rate: Channels k that each layer adds.
        l2: Weight of the L2 penalty on kernels.

    Example:
        >>> model = densenet((32, 32, 3), 10)
        >>> sum(weight.numpy().size for weight in model.trainable_weights)
        6956298

    Reference:
        Huang, Liu, van der Maaten, Weinberger (2017), *Densely connected convolutional networks*,
        arXiv 1608.06993.
    """
    penalty = keras.regularizers.L2(l2) if l2 else None

    def convolution(hidden: Any, channels: int, size: int) -> Any:
        return keras.layers.Conv2D(
            channels,
            size,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=penalty,
        )(hidden)

    def activation(hidden: Any) -> Any:
        hidden = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(hidden)
        return keras.layers.ReLU()(hidden)

    inputs = keras.Input(image_shape)
    hidden = convolution(inputs, 2 * growth_rate, 3)
    for number, num_layers in enumerate(blocks):
        if number:
            hidden = convolution(activation(hidden), hidden.shape[-1] // 2, 1)
            hidden = keras.layers.AveragePooling2D(2)(hidden)
        for _ in range(num_layers):
            new = convolution(activation(hidden), 4 * growth_rate, 1)
            new = convolution(activation(new), growth_rate, 3)
            hidden = keras.layers.Concatenate()([hidden, new])
    hidden = keras.layers.GlobalAveragePooling2D()(activation(hidden))
    logits = keras.layers.Dense(num_classes, kernel_regularizer=penalty)(hidden)
    return keras.Model(inputs, logits)
