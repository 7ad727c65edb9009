"""The ResNets of He et al. in their form for CIFAR-10, in plain Keras layers.

`keras.applications` has ResNets whose first layers are made for images of 224 × 224 pixels, and
KerasHub requires `tensorflow-text` and a later Keras than this package.
"""

from collections.abc import Sequence
from typing import Any

import keras


def resnet(
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    blocks: Sequence[int] = (2, 2, 2, 2),
    bottleneck: bool = False,
    width: int = 64,
    l2: float = 0.0,
) -> keras.Model:
    """A residual network that returns logits, by default ResNet-18.

    A 3 × 3 convolution, then a stage for each of `blocks`, then global average pooling and a dense
    layer. Each stage but the first halves the image and doubles the channels. It is the form of the
    code that Fan et al. use (github.com/kuangliu/pytorch-cifar): table 1 of He et al. without the
    first pooling, and with a first convolution of 3 × 3. ResNet-34 has 3, 4, 6 and 3 blocks; with
    bottlenecks, ResNet-101 has 3, 4, 23 and 3, and ResNet-152 has 3, 8, 36 and 3.

    Args:
        image_shape: Height, width and channels of the images.
        num_classes: Number of classes.
        blocks: Number of blocks of each stage.
        bottleneck: Whether a block has three convolutions, of 1, 3 and 1, and four times the
            channels at its end; otherwise it has two of 3 × 3.
        width: Channels of the first stage.
        l2: Weight of the L2 penalty on kernels.

    Example:
        >>> model = resnet((32, 32, 3), 10)
        >>> sum(weight.numpy().size for weight in model.trainable_weights)
        11173962

    Reference:
        He, Zhang, Ren, Sun (2016), *Deep residual learning for image recognition*, arXiv
        1512.03385.
    """
    penalty = keras.regularizers.L2(l2) if l2 else None

    def convolution(hidden: Any, channels: int, size: int, stride: int = 1) -> Any:
        hidden = keras.layers.Conv2D(
            channels,
            size,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=penalty,
        )(hidden)
        return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(hidden)

    def block(hidden: Any, channels: int, stride: int) -> Any:
        shortcut, end = hidden, channels * (4 if bottleneck else 1)
        if stride > 1 or hidden.shape[-1] != end:
            shortcut = convolution(hidden, end, 1, stride)
        if bottleneck:
            hidden = keras.layers.ReLU()(convolution(hidden, channels, 1))
        hidden = keras.layers.ReLU()(convolution(hidden, channels, 3, stride))
        hidden = convolution(hidden, end, 1 if bottleneck else 3)
        return keras.layers.ReLU()(keras.layers.Add()([shortcut, hidden]))

    inputs = keras.Input(image_shape)
    hidden = keras.layers.ReLU()(convolution(inputs, width, 3))
    for stage, num_blocks in enumerate(blocks):
        for number in range(num_blocks):
            hidden = block(hidden, width * 2**stage, 2 if stage and not number else 1)
    hidden = keras.layers.GlobalAveragePooling2D()(hidden)
    logits = keras.layers.Dense(num_classes, kernel_regularizer=penalty)(hidden)
    return keras.Model(inputs, logits)
