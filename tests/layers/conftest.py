"""Fixtures of the layers' tests."""

import keras
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
