"""The ResNet and the DenseNet for small images, against their definitions."""

import numpy as np
import pytest
from densenet import densenet
from resnet import resnet

pytestmark = pytest.mark.slow


def num_trainable(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def test_resnet_20_has_the_published_number_of_parameters():
    assert round(num_trainable(resnet((32, 32, 3), 10)) / 1e6, 2) == 0.27


def test_densenets_have_the_published_numbers_of_parameters():
    plain = densenet((32, 32, 3), 10, depth=40, bottleneck=False, compression=1.0)
    assert round(num_trainable(plain) / 1e6, 1) == 1.0
    assert round(num_trainable(densenet((32, 32, 3), 10)) / 1e6, 1) == 0.8
