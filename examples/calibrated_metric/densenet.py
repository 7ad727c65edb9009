"""The DenseNet of Huang et al. for small images, in plain Keras layers.

`keras.applications` has DenseNets of fixed sizes, whose first layers are made for images of 224 ×
224 pixels, and KerasHub requires `tensorflow-text` and a later Keras than this package.
"""

from typing import Any

import keras


def densenet(
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    depth: int = 100,
    growth_rate: int = 12,
    bottleneck: bool = True,
    compression: float = 0.5,
    dropout: float = 0.0,
    l2: float = 0.0,
) -> keras.Model:
    """A densely connected network that returns logits; the defaults are DenseNet-BC (k=12, L=100).

    A 3 × 3 convolution, then three dense blocks with a transition between them, then global average
    pooling and a dense layer. Each layer of a block sees the concatenated outputs of all earlier
    layers of the block and adds k channels. A convolution is preceded by batch normalization and
    ReLU. `bottleneck=False, compression=1.0` is the DenseNet without B and C.

    Args:
        image_shape: Height, width and channels of the images.
        num_classes: Number of classes.
        depth: Number L of layers with weights: 6n + 4 with bottlenecks, n in each block, or 3n + 4.
        growth_rate: Channels k that each layer adds.
        bottleneck: Whether a 1 × 1 convolution of 4k channels precedes each 3 × 3 convolution, and
            the first convolution has 2k channels instead of 16.
        compression: Share of the channels that a transition keeps, in (0, 1].
        dropout: Dropout rate after each convolution but the first; the paper has 0.2 for images
            without augmentation.
        l2: Weight of the L2 penalty on kernels. The paper has a weight decay of 1e-4.

    Example:
        >>> model = densenet((32, 32, 3), 10)
        >>> sum(weight.numpy().size for weight in model.trainable_weights)
        769162

    Reference:
        Huang, Liu, van der Maaten, Weinberger (2017), *Densely connected convolutional networks*,
        arXiv 1608.06993.
    """
    num_layers, remainder = divmod(depth - 4, 6 if bottleneck else 3)
    if remainder or num_layers < 1:
        form = "6n + 4 with bottlenecks: 10, 16, 22, …" if bottleneck else "3n + 4: 7, 10, 13, …"
        raise ValueError(f"Argument `depth` must be {form}. Received: depth={depth}.")
    if not 0 < compression <= 1:
        raise ValueError(
            f"Argument `compression` must be in (0, 1]. Received: compression={compression}."
        )
    layers = _Layers(dropout, l2)
    inputs = keras.Input(image_shape)
    hidden = layers.plain_convolution(inputs, 2 * growth_rate if bottleneck else 16, 3)
    for block in range(3):
        if block:
            hidden = layers.convolution(hidden, int(compression * hidden.shape[-1]), 1)
            hidden = keras.layers.AveragePooling2D(2)(hidden)
        for _ in range(num_layers):
            new = layers.convolution(hidden, 4 * growth_rate, 1) if bottleneck else hidden
            new = layers.convolution(new, growth_rate, 3)
            hidden = keras.layers.Concatenate()([hidden, new])
    hidden = keras.layers.GlobalAveragePooling2D()(layers.activation(hidden))
    logits = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", kernel_regularizer=layers.penalty
    )(hidden)
    return keras.Model(inputs, logits, name=f"densenet_{depth}")


class _Layers:
    """Convolutions of a network with these options."""

    def __init__(self, dropout: float, l2: float) -> None:
        self.dropout = dropout
        self.penalty = keras.regularizers.L2(l2) if l2 else None

    def activation(self, hidden: Any) -> Any:
        # Short trainings have too few steps for Keras' default momentum of 0.99.
        return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(hidden))

    def plain_convolution(self, hidden: Any, channels: int, size: int) -> Any:
        return keras.layers.Conv2D(
            channels,
            size,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=self.penalty,
        )(hidden)

    def convolution(self, hidden: Any, channels: int, size: int) -> Any:
        hidden = self.plain_convolution(self.activation(hidden), channels, size)
        return keras.layers.Dropout(self.dropout)(hidden) if self.dropout else hidden
