"""The ResNet of He et al. for small images, of 6n + 2 layers, in plain Keras layers.

`keras.applications` has ResNets of fixed sizes, whose first layers are made for images of 224 × 224
pixels, and KerasHub requires `tensorflow-text` and a later Keras than this package.
"""

from typing import Any

import keras


def resnet(
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    depth: int = 20,
    width: int = 16,
    batch_normalization: bool = True,
    dropout: float = 0.0,
    l2: float = 0.0,
) -> keras.Model:
    """A residual network that returns logits, as in section 4.2 of He et al.

    A 3 × 3 convolution, then three stages of n blocks, then global average pooling and a dense
    layer. A block is `relu(x + conv(relu(conv(x))))`. The first block of stages 2 and 3 halves the
    image and doubles the channels; its shortcut subsamples the image and fills the new channels
    with zeros, so it has no weights.

    Args:
        image_shape: Height, width and channels of the images.
        num_classes: Number of classes.
        depth: Number of layers with weights, 6n + 2: 8, 14, 20, …
        width: Channels of the first stage.
        batch_normalization: Whether each convolution is followed by batch normalization; otherwise
            it has a bias.
        dropout: Dropout rate before the dense layer. The paper has none.
        l2: Weight of the L2 penalty on kernels. The paper has a weight decay of 1e-4.

    Example:
        >>> model = resnet((32, 32, 3), 10, depth=20, width=16)
        >>> sum(weight.numpy().size for weight in model.trainable_weights)
        269722

    Reference:
        He, Zhang, Ren, Sun (2016), *Deep residual learning for image recognition*, arXiv
        1512.03385.
    """
    num_blocks, remainder = divmod(depth - 2, 6)
    if remainder or num_blocks < 1:
        raise ValueError(f"Argument `depth` must be 6n + 2: 8, 14, 20, … Received: depth={depth}.")
    layers = _Layers(batch_normalization, l2)
    inputs = keras.Input(image_shape)
    hidden = keras.layers.ReLU()(layers.convolution(inputs, width))
    for stage in range(3):
        for block in range(num_blocks):
            stride = 2 if stage and not block else 1
            hidden = layers.residual_block(hidden, width * 2**stage, stride)
    hidden = keras.layers.GlobalAveragePooling2D()(hidden)
    if dropout:
        hidden = keras.layers.Dropout(dropout)(hidden)
    logits = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", kernel_regularizer=layers.penalty
    )(hidden)
    return keras.Model(inputs, logits, name=f"resnet_{depth}")


class _Layers:
    """Convolutions and blocks of a network with these options."""

    def __init__(self, batch_normalization: bool, l2: float) -> None:
        self.batch_normalization = batch_normalization
        self.penalty = keras.regularizers.L2(l2) if l2 else None

    def convolution(self, hidden: Any, channels: int, stride: int = 1) -> Any:
        hidden = keras.layers.Conv2D(
            channels,
            3,
            strides=stride,
            padding="same",
            use_bias=not self.batch_normalization,
            kernel_initializer="he_normal",
            kernel_regularizer=self.penalty,
        )(hidden)
        if self.batch_normalization:
            # Short trainings have too few steps for Keras' default momentum of 0.99.
            hidden = keras.layers.BatchNormalization(momentum=0.9)(hidden)
        return hidden

    def residual_block(self, hidden: Any, channels: int, stride: int) -> Any:
        shortcut = hidden
        if new_channels := channels - hidden.shape[-1]:
            shortcut = keras.ops.pad(
                hidden[:, ::stride, ::stride], [(0, 0), (0, 0), (0, 0), (0, new_channels)]
            )
        hidden = keras.layers.ReLU()(self.convolution(hidden, channels, stride))
        hidden = self.convolution(hidden, channels)
        return keras.layers.ReLU()(keras.layers.Add()([shortcut, hidden]))
