"""Arguments that layers refuse, by their names."""

import keras
import numpy as np
import pytest

from keras_calibration import layers
from keras_calibration.layers import (
    ILPS,
    BlendedHead,
    BoostedTrees,
    FieldBias,
    FieldILPS,
    FieldNetwork,
    IsotonicRegression,
    NeuralCalibration,
    PlattScaling,
    SamplingCorrection,
    VectorScaling,
)

NAN = float("nan")
SITE = {"site": 3}
pytest.importorskip("tensorflow")  # Keras' lookups of strings need it
ONE_HOT = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
# Class, arguments, and the name that the error must hold.
REFUSED = [
    *((ILPS, {"knots": knots}, "knots") for knots in ("median", [1.0], [1.0, 1.0], [0.0, NAN])),
    (ILPS, {"knots": [1e6, 1e6 + 1e-3]}, "knots"),  # equal in float32
    *((ILPS, {"num_knots": number}, "num_knots") for number in (1, 2.5)),
    (ILPS, {"extrapolation": "flat"}, "extrapolation"),
    (ILPS, {"monotonic": "soft"}, "monotonic"),
    *((ILPS, {"smoothness": value}, "smoothness") for value in (-1, np.inf, NAN, "automatic")),
    (ILPS, {"penalty": NAN}, "penalty"),
    *((IsotonicRegression, {"max_num_steps": n}, "max_num_steps") for n in (0, 2.5, "10")),
    *((VectorScaling, {"num_classes": n}, "num_classes") for n in (1, 2.5, "10")),
    *((SamplingCorrection, {"rate": r}, "rate") for r in (0, 10, -0.1, NAN, None)),
    (FieldBias, {"fields": {}}, "fields"),
    (FieldBias, {"fields": {"site": 0}}, "site"),
    (FieldBias, {"fields": SITE, "calibrator": "ilps"}, "calibrator"),
    (FieldBias, {"fields": SITE, "calibrator": FieldBias({}, follows_time=True)}, "calibrator"),
    (FieldBias, {"fields": SITE, "prior_scale": 0.0}, "prior_scale"),
    (FieldBias, {"fields": SITE, "numeric": ["site"]}, "numeric"),
    (FieldBias, {"fields": {}, "numeric": ["x"], "num_knots": 1}, "num_knots"),
    (FieldILPS, {"fields": {}}, "fields"),
    *((FieldILPS, {"fields": SITE, "num_knots": number}, "num_knots") for number in (1, 2.0)),
    (FieldILPS, {"fields": SITE, "prior_scale": 0.0}, "prior_scale"),
    (FieldNetwork, {"fields": {}}, "fields"),
    (FieldNetwork, {"fields": "site"}, "fields"),
    *((FieldNetwork, {"fields": {"a": size}}, "a") for size in (0, "x", 2.5, ONE_HOT)),
    (FieldNetwork, {"fields": SITE, "numeric": ["site"]}, "numeric"),
    (FieldNetwork, {"fields": SITE, "embedding_dim": 0}, "embedding_dim"),
    (FieldNetwork, {"fields": SITE, "hidden_units": (8, 0)}, "hidden_units"),
    (FieldNetwork, {"fields": SITE, "num_numeric_knots": 1}, "num_numeric_knots"),
    (FieldNetwork, {"fields": SITE, "num_coarse_knots": 1}, "num_coarse_knots"),
    (FieldNetwork, {"fields": SITE, "dropout": 1.0}, "dropout"),
    *((FieldNetwork, {"fields": SITE, "regularization": r}, "regularization") for r in (-1, NAN)),
    *((BoostedTrees, {"fields": SITE, "num_rounds": n}, "num_rounds") for n in (0, 2.5)),
    (BoostedTrees, {"fields": SITE, "head": keras.layers.Dense(1)}, "head"),
    (BoostedTrees, {"fields": SITE, "numeric": "site"}, "numeric"),
    *((NeuralCalibration, {"calibrator": c}, "calibrator") for c in ("ilps", FieldBias(SITE))),
    (NeuralCalibration, {"field_network": lambda features: 0}, "field_network"),
    (NeuralCalibration, {"num_members": 0}, "num_members"),
    *((BlendedHead, {"heads": heads}, "heads") for heads in ([], ["neural"])),
]


@pytest.mark.parametrize(("kind", "arguments", "name"), REFUSED)
def test_arguments_out_of_range_are_refused(kind, arguments, name):
    with pytest.raises(
        ValueError, match=f"(?s)^(Argument `{name}`|Field '{name}') must .*Received: "
    ):
        kind(**arguments)


LOGITS, LABELS = np.linspace(-1, 1, 4), [0, 1, 0, 1]
NETWORK, IDS = FieldNetwork(SITE, ["age"]), np.zeros(4, int)


def two_outputs():
    inputs = {"age": keras.Input((1,), name="age")}
    return keras.Model(inputs, keras.layers.Dense(2)(inputs["age"]))


def fit_network(folds, num_members=1):
    head = NeuralCalibration(None, FieldNetwork(SITE), num_members)
    head.fit(LOGITS, LABELS, {"site": IDS}, settings=layers.FitSettings(folds=folds))


ROWS = [
    (lambda: PlattScaling().fit([], []), "empty"),
    (lambda: PlattScaling().fit(LOGITS, None), "labels=None"),
    (lambda: PlattScaling().fit(LOGITS, [1, 1, 1, 1]), "`labels`.*one class"),
    (lambda: PlattScaling().fit(LOGITS, LABELS, np.ones(4)), "`features`.*mapping"),
    (lambda: PlattScaling().update(LOGITS, LABELS, np.ones(4)), "`features`.*mapping"),
    (lambda: ILPS().adapt(LOGITS, LABELS, np.ones(4)), "`features`.*mapping"),
    (lambda: FieldBias(SITE).fit(LOGITS, LABELS, {"site": np.zeros(2, int)}), "'site': 2"),
    (lambda: FieldBias(SITE).fit(LOGITS, LABELS, {"page": IDS}), "no 'site'. Available: 'page'"),
    (lambda: FieldILPS(SITE)(LOGITS, {"page": IDS}), "FieldILPS.*no 'site'"),
    # In a graph, which is called later.
    (lambda: FieldBias(SITE)(keras.Input((1,)), {"ad": keras.Input((1,))}), "Available: 'ad'"),
    (lambda: FieldBias(SITE)(keras.Input((1,))), "no 'site'. Available: none"),
    (lambda: BoostedTrees(SITE, ["age"])(LOGITS, {"site": np.zeros(4, int)}), "no 'age'"),
    (lambda: FieldBias({}, numeric=["x"])(LOGITS, {"z": LOGITS}), "Received: no 'x'"),
    (lambda: FieldBias({}, numeric=["x"]).fit(LOGITS, LABELS, {"x": ["red"] * 4}), "'x'.*strings"),
    *(
        (lambda take=take, features=features: take({"site": IDS, **features}), message)
        for take in (NETWORK, NETWORK.adapt)
        for features, message in (
            ({"x": IDS}, r"Received: no 'age'\. Available: 'site', 'x'\."),
            ({"age": np.ones((4, 2))}, r"feature 'age' .*\(4, 2\)"),
            ({"age": LOGITS, "site": np.ones((4, 2), int)}, r"feature 'site' .*\(4, 2\)"),
        )
    ),
    (lambda: NETWORK.adapt({"site": IDS, "age": LOGITS[:1]}), "'site': 4, 'age': 1"),
    (lambda: ILPS().adapt(LOGITS), "`labels`.*knots="),
    (lambda: ILPS().adapt(LOGITS, [1, 1, 1, 1]), "`labels`.*one class"),
    (lambda: ILPS(knots="quantile").adapt([]), "empty"),
    (lambda: VectorScaling(3).fit(np.zeros((3, 3)), [1, 1, 2], [1, 1, 0]), "all 3 classes"),
    (lambda: VectorScaling(3).fit(np.zeros((3, 3)), [0, 1, 3]), "`labels`.* 0 … 2"),
    (lambda: VectorScaling(3).fit(np.zeros((2, 3)), [[1, 0, 0], [0, 2, -1]]), "add up to 1"),
    (lambda: VectorScaling(3).fit(np.zeros((2, 3)), np.full((2, 3), 0.4)), "add up to 1"),
    (lambda: VectorScaling(3).fit(np.zeros((2, 3)), np.zeros((2, 2))), r"labels=\(2, 2\)"),
    (lambda: VectorScaling(3).fit(np.zeros((3, 3)), [0, 1]), "'labels': 2"),
    (lambda: layers.TemperatureScaling().fit(np.full((3, 4), np.inf), [0, 1, 2]), "finite"),
    (
        lambda: NeuralCalibration(ILPS(), two_outputs())(LOGITS, {"age": LOGITS[:, None]}),
        r"corrections of NeuralCalibration.*\(4, 2\)",
    ),
    (lambda: NeuralCalibration(None, NETWORK)(LOGITS, {"site": IDS}), "Received: no 'age'"),
    (lambda: PlattScaling().fit([0.0, 1.0], [0, 1], from_logits="yes"), "from_logits"),
    (lambda: FieldBias(SITE).get_offsets("stie"), "`field` must be .*'site'"),
    (lambda: fit_network(1), "folds"),
    (lambda: fit_network(np.arange(4) % 3, num_members=2), "num_members"),
]


@pytest.mark.parametrize(("act", "message"), ROWS)
def test_rows_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()
