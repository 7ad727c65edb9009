"""Rows come the same way to every fit: the head's own, that of a model, of `calibrate`."""

import warnings

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration import layers
from symbols import symbols

RNG = np.random.default_rng(0)
N = 900
SCORE = RNG.normal(size=N).astype("float32")
SITE = RNG.integers(0, 3, N)
# Of which float32 has not all digits.
SOFT = np.clip((RNG.random(N) < 1 / (1 + np.exp(-SCORE - 0.3 * SITE))) * 0.9 + 1e-9, 0, 1)
WEIGHTS = RNG.uniform(0.5, 2, N)
SETTINGS = kc.layers.FitSettings(max_epochs=2)
HEADS = {
    "PlattScaling": layers.PlattScaling,
    "FieldBias": lambda: layers.FieldBias({"site": 3}, layers.ILPS(5)),
    "NeuralCalibration": lambda: layers.NeuralCalibration(
        layers.ILPS(5), layers.FieldNetwork({"site": 3})
    ),
    "BoostedTrees": lambda: layers.BoostedTrees({"site": 3}, head=layers.ILPS(5), num_rounds=8),
}


def model_of(head):
    inputs = symbols(score=(1,), site="int64")
    features = {} if head.feature_names == () else {"site": inputs["site"]}
    return keras.Model(inputs, head(inputs["score"], features))


def fitted(name, score, site, labels, weights, settings=SETTINGS):
    """The weights of a head fitted in a model, and by itself."""
    head_weights = []
    for in_model in (True, False):
        keras.utils.set_random_seed(0)
        head = HEADS[name]()
        if in_model:
            x = {"score": score, "site": site}
            options = {"settings": settings, "only_if_better": False, "verbose": 0}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # by chance, a fit is worse than none
                kc.fit_head(model_of(head), x, labels, weights, **options)
        else:
            head.fit(score, labels, {"site": site}, weights, settings=settings)
        head_weights.append(head.get_weights())
    return head_weights


def assert_equal(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", list(HEADS))
def test_a_head_is_fitted_alike_in_a_model_and_by_itself(name):
    assert_equal(*fitted(name, SCORE, SITE, SOFT, WEIGHTS))


def test_what_is_wrong_is_said_once():
    labels = (SOFT > 0.5).astype(float)
    scores = 1 / (1 + np.exp(-SCORE))  # probabilities in place of logits
    weights = np.where(labels == 1, 1.0, 30.0)  # which depend on the label alone
    model = model_of(layers.PlattScaling())
    for fit in (
        lambda: model.layers[-1].fit(scores, labels, sample_weight=weights),
        lambda: kc.fit_head(model, {"score": scores, "site": SITE}, labels, weights, verbose=0),
        lambda: kc.calibrate(
            model, {"score": scores, "site": SITE}, labels, weights, methods="platt", verbose=0
        ),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fit()
        texts = [str(warning.message) for warning in told]
        assert sum("look like probabilities" in text for text in texts) == 1, texts
        assert sum("depend on the label alone" in text for text in texts) == 1, texts
