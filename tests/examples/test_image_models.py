"""The ResNet and the DenseNet for small images, against their definitions."""

import importlib.util
from pathlib import Path

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


def test_resnet_20_has_the_published_number_of_parameters():
    assert round(num_trainable(resnet((32, 32, 3), 10)) / 1e6, 2) == 0.27


@pytest.mark.slow
def test_densenets_have_the_published_numbers_of_parameters():
    plain = densenet((32, 32, 3), 10, depth=40, bottleneck=False, compression=1.0)
    assert round(num_trainable(plain) / 1e6, 1) == 1.0
    assert round(num_trainable(densenet((32, 32, 3), 10)) / 1e6, 1) == 0.8
