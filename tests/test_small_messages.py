"""What users get wrong at the boundary of the package, and what they are told."""

import re

import keras
import numpy as np
import pytest

import keras_calibration as kc
from symbols import symbols

RNG = np.random.default_rng(0)
N = 400
SITE = np.arange(N) % 20
PRICE = RNG.normal(size=N).astype("float32")
Y = (RNG.random(N) < 0.4).astype(int)
QUICK = {"verbose": 0}


def base():
    inputs = symbols(site="int32", price=(1,))
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))


X = {"site": SITE, "price": PRICE[:, None]}


def test_a_single_name_is_a_name():
    columns = {"fields": "site", "numeric": "price", "methods": "identity", **QUICK}
    with pytest.warns(UserWarning, match="the columns in `numeric`"):
        kc.calibrate(base(), X, Y, **columns)
    assert kc.layers.FieldNetwork({"site": 20}, numeric="price").numeric == ("price",)
    scores = np.linspace(0.1, 0.9, N)
    with pytest.warns(UserWarning, match="the columns in `numeric`"):
        kc.calibrate_scores(scores, Y, X, **columns)
    with pytest.raises(ValueError, match=r"without \['prise'\]"):
        kc.calibrate_scores(scores, Y, X, numeric="prise", **QUICK)


def temperature():
    head = kc.layers.TemperatureScaling()
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Activation("sigmoid")(head(inputs)))
    kc.fit_head(model, PRICE[:, None], PRICE > 1, **QUICK)


HINTS = {
    "a mean that the head cannot correct": (temperature, "PlattScaling", "initialize"),
    "labels that are missing": (lambda: kc.calibrate(base(), X), "must have labels", r"fit\("),
    "probabilities as logits": (
        lambda: kc.layers.PlattScaling().fit(np.linspace(0, 1, N), Y),
        "from_logits=False to the head",
        "nothing else",
    ),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("case", HINTS)
def test_hints_name_what_the_function_has(case):
    call, named, not_named = HINTS[case]
    with pytest.raises((ValueError, UserWarning, RuntimeWarning), match=named) as told:
        call()
    assert re.search(not_named, str(told.value)) is None
