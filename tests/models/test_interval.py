"""`interval`, of a calibrated model."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from symbols import symbols

WORDS = np.array(["news", "mail", "shop"])


def made_rows(num_rows=900):
    generator = np.random.default_rng(0)
    x = {
        "price": generator.normal(-1, 1, (num_rows, 1)).astype("float32"),
        "site": generator.choice(WORDS, num_rows, p=[0.7, 0.29, 0.01]),
    }
    chances = 1 / (1 + np.exp(-x["price"][:, 0] - (x["site"] == "news")))
    return x, (generator.random(num_rows) < chances).astype("float32")


def model_of(head):
    inputs = symbols(price=(1,), site="string")
    base = keras.Model(
        inputs, keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(inputs["price"])
    )
    return kc.models.CalibratedModel(base, head)


@pytest.mark.tensorflow
def test_it_holds_the_prediction_and_narrows_with_rows():
    x, y = made_rows()
    lookup = keras.layers.StringLookup(vocabulary=list(WORDS))
    model = model_of(kc.layers.FieldBias({"site": lookup}, kc.layers.PlattScaling()))
    kc.fit_head(model, x, y, verbose=0)
    lower, upper = kc.interval(model, x)
    assert lower.shape == upper.shape == (900, 1)
    probabilities = model.predict(x, verbose=0)
    assert ((lower < probabilities) & (probabilities < upper)).all()
    width = (upper - lower)[:, 0]
    assert width[x["site"] == "news"].mean() < 0.5 * width[x["site"] == "shop"].mean()
    wide = kc.interval(model, x, level=0.99)
    assert ((wide[0] < lower) & (upper < wide[1])).all()
    again = kc.models.CalibratedModel.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(kc.interval(again, x)[0], lower)
