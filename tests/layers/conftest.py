"""Fixtures of the layers' tests."""

import keras
import numpy as np
import pytest


@pytest.fixture
def mixed_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.fixture
def reload(tmp_path):
    """A model after a round trip through a `.keras` file."""

    def reload(model):
        model.save(tmp_path / "model.keras")
        return keras.saving.load_model(tmp_path / "model.keras")

    return reload


@pytest.fixture
def clicks():
    """Logits (n, 1), labels (n, 1): the base model predicts too much."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-2, 2, (2000, 1)).astype(np.float32)
    labels = generator.random((2000, 1)) < 1 / (1 + np.exp(1 - 0.7 * logits))
    return logits, labels.astype(np.float32)
