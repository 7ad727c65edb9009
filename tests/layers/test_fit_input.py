"""What the direct fits are given: logits, and what is taken for them by mistake."""

import keras
import numpy as np
import pytest

from backends import digits
from every_head import CALIBRATORS
from keras_calibration import layers

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(-1, 1, 400)
PROBABILITIES = 1 / (1 + np.exp(-LOGITS))
LABELS = (GENERATOR.random(400) < PROBABILITIES).astype(float)


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_probabilities_are_taken_where_they_are_announced(calibrator):
    layer, expected = calibrator(), calibrator()
    summary = layer.fit(PROBABILITIES, LABELS, from_logits=False)
    reference = expected.fit(LOGITS, LABELS)
    assert summary.log_loss_in_sample == pytest.approx(
        reference.log_loss_in_sample, abs=digits(1e-6)
    )
    for weight, other in zip(layer.weights, expected.weights, strict=True):
        values = [keras.ops.convert_to_numpy(part) for part in (weight, other)]
        if weight.name == "posterior_factor":
            # Only F Fᵀ is known: the sign of a column of F is that of an eigenvector.
            values = [factor @ factor.T for factor in values]
        np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"`logits`.*from_logits=True"):
        layer.fit(LOGITS, LABELS, from_logits=False)
    if calibrator is not layers.IsotonicRegression:  # whose fit needs the rows themselves
        layer.update(PROBABILITIES, LABELS, from_logits=False)


@pytest.mark.filterwarnings("ignore:.*the best scale of the logit")
def test_probabilities_in_place_of_logits_warn():
    site = {"site": np.arange(400) % 3}
    heads = [layers.FieldBias({"site": 3}), layers.NeuralCalibration(layers.PlattScaling())]
    heads += [layers.BlendedHead(heads), *(calibrator() for calibrator in CALIBRATORS)]
    for head in heads:
        with pytest.warns(UserWarning, match="like probabilities.*from_logits=False"):
            head.fit(PROBABILITIES, LABELS, site)
    for teach in (layers.PlattScaling().update, layers.ILPS().adapt):
        with pytest.warns(UserWarning, match="like probabilities"):
            teach(PROBABILITIES, LABELS)
    soft = 0.2 + 0.4 * LABELS + 0.3 * PROBABILITIES
    with pytest.warns(UserWarning, match="swapped"):
        layers.PlattScaling().fit(LABELS, soft)
    with pytest.raises(ValueError, match="logits first"):
        layers.PlattScaling().fit(LABELS, LOGITS)


def test_class_probabilities():
    shares = GENERATOR.dirichlet([1, 1, 1], 300)
    labels = np.array([GENERATOR.choice(3, p=row) for row in shares])
    with pytest.warns(UserWarning, match="add up to 1"):
        layers.TemperatureScaling().fit(shares, labels)
    summary = layers.TemperatureScaling().fit(shares, labels, from_logits=False)
    reference = layers.TemperatureScaling().fit(np.log(shares), labels)
    assert summary.log_loss_in_sample == pytest.approx(reference.log_loss_in_sample)
