"""Every head with a direct fit, and how it is made: for tests of what all of them must keep."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keras_calibration import layers
from keras_calibration.layers.histogram_head import HistogramHead

NUM_SITES, NUM_CLASSES = 5, 3


@dataclass(frozen=True)
class Formula:
    """The curve of a calibrator, `columns @ parameters + fixed`, and its prior.

    Args:
        columns: Of logits (n,): the columns that are multiplied by the parameters.
        parameters: Of a fitted layer.
        precision: Of the prior of each parameter, 0 for none.
        centre: Where the prior has its mean.
        lowest: Bound of each parameter that has a prior.
        fixed: Of logits (n,): what is added.
    """

    columns: Callable
    parameters: Callable
    precision: list
    centre: float = 1.0
    lowest: float = 1e-6
    fixed: Callable = np.zeros_like


def trees(inner, fields, numeric):
    return layers.BoostedTrees(fields, numeric, inner, num_rounds=8)


def network():
    return layers.FieldNetwork(
        {"site": NUM_SITES}, embedding_dim=2, hidden_units=(2,), dropout=0, seed=0
    )


SITE = {"site": NUM_SITES}
# Name → how to make the head, and which units are free: the scale, the zero, or both.
HEADS = {
    "BiasCorrection": (layers.BiasCorrection, "zero"),
    "TemperatureScaling": (layers.TemperatureScaling, "scale"),
    "PlattScaling": (layers.PlattScaling, "both"),
    "BetaCalibration": (layers.BetaCalibration, ""),
    "IsotonicRegression": (layers.IsotonicRegression, "both"),
    "ILPS": (layers.ILPS, "both"),
    "ILPS, strict": (lambda: layers.ILPS(8, "quantile", monotonic="strict"), "both"),
    "ILPS, auto": (lambda: layers.ILPS(8, smoothness="auto"), "both"),
    "FieldBias": (lambda: layers.FieldBias(SITE), "both"),
    "FieldBias, curve": (lambda: layers.FieldBias(SITE, layers.ILPS(6), ["price"]), "both"),
    "FieldILPS": (lambda: layers.FieldILPS(SITE), "both"),
    "FieldILPS, curve": (lambda: layers.FieldILPS(SITE, layers.PlattScaling()), "both"),
    "BoostedTrees": (lambda: trees(layers.FieldBias(SITE), SITE, ["price"]), "both"),
    "NeuralCalibration": (lambda: layers.NeuralCalibration(layers.ILPS(6), network()), "both"),
    "NeuralCalibration, alone": (lambda: layers.NeuralCalibration(layers.PlattScaling()), "both"),
    "BlendedHead": (
        lambda: layers.BlendedHead([layers.FieldBias(SITE), layers.PlattScaling()]),
        "both",
    ),
    "TemperatureScaling, classes": (layers.TemperatureScaling, "both"),
    "VectorScaling": (lambda: layers.VectorScaling(NUM_CLASSES), "both"),
}


_ALONE = [make() for make, _ in HEADS.values()]
# The classes of calibrators with a fit of their own, and those of them that have `update`.
CALIBRATORS = sorted(
    {type(head) for head in _ALONE if not (head.feature_names or head.parts())}
    - {layers.VectorScaling},
    key=lambda kind: kind.__name__,
)
STREAMING = [kind for kind in CALIBRATORS if issubclass(kind, HistogramHead)]
FORMULAS = {
    layers.BiasCorrection: Formula(
        lambda x: [np.ones_like(x)], lambda layer: [layer.bias], [0.0], fixed=np.array
    ),
    layers.TemperatureScaling: Formula(lambda x: [x], lambda layer: [1 / layer.temperature], [0.0]),
    layers.PlattScaling: Formula(
        lambda x: [x, np.ones_like(x)], lambda layer: [layer.scale, layer.bias], [0.0, 0.0]
    ),
    layers.BetaCalibration: Formula(
        lambda x: [-np.logaddexp(0, -x), np.logaddexp(0, x), np.ones_like(x)],
        lambda layer: [layer.slope_below, layer.slope_above, layer.bias],
        [0.1, 0.1, 0.0],
    ),
}


def has_classes(name):
    return "classes" in name or name == "VectorScaling"
