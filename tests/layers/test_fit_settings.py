"""FitSettings, and what takes their place, are checked before anything is fitted."""

import numpy as np
import pytest

from keras_calibration import fit_calibrator
from keras_calibration.layers import FieldNetwork, FitSettings, NeuralCalibration, PlattScaling

LOGITS = np.linspace(-2.0, 2.0, 40)
LABELS = np.arange(40) % 3 == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_epochs", 0),
        ("max_epochs", 2.5),
        ("patience", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("batch_size", 0),
    ],
)
def test_numbers_that_train_nothing_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        FitSettings(**{name: value})


def test_settings_of_another_type_are_refused():
    head = NeuralCalibration(PlattScaling(), FieldNetwork({"site": 3}))
    with pytest.raises(ValueError, match="`settings`"):
        head.fit(LOGITS, LABELS, {"site": np.arange(40) % 3}, settings=3)


def test_a_calibrator_is_fitted_to_a_log_and_not_to_an_array():
    with pytest.raises(ValueError, match="`log`"):
        fit_calibrator(PlattScaling(), LOGITS)
