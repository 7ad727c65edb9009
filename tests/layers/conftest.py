"""Fixtures of the layers' tests."""

import keras
import pytest


@pytest.fixture
def reload(tmp_path):
    """A model after a round trip through a `.keras` file."""

    def reload(model):
        model.save(tmp_path / "model.keras")
        return keras.saving.load_model(tmp_path / "model.keras")

    return reload
