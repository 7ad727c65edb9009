"""Arguments that ask for another one, which is not there, say so: by an error or a warning."""

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from keras_calibration import layers, metrics
from keras_calibration.logs import Periods, ScoredLog, monitor_sums

RNG = np.random.default_rng(0)
Z = RNG.normal(-1, 1, 600)
Y = (RNG.random(600) < 1 / (1 + np.exp(-Z))).astype(int)
DAY = np.repeat(np.arange(30), 20)
LOG = pd.DataFrame({"z": Z, "label": Y, "site": DAY % 3, "at": pd.to_datetime(DAY, unit="D")})
LOG["at"] += pd.Timedelta(days=20_000)
COUNTS, SETTINGS = {"weights_are": "counts"}, layers.FitSettings(max_epochs=2)


def log(**columns):
    return ScoredLog(LOG, logit="z", **columns)


def model():
    inputs = {"z": keras.Input((1,), name="z")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["z"]))
    return kc.models.CalibratedModel(base, layers.PlattScaling())


def scores(**arguments):
    options = {"methods": "bias", "from_logits": True, "verbose": 0, **arguments}
    kc.calibrate_scores(Z, Y, **options)


WARNED = {
    "calibrate": lambda: kc.calibrate(model(), {"z": Z}, Y, methods="bias", verbose=0, **COUNTS),
    "scores": lambda: scores(**COUNTS),
    "fit_head": lambda: kc.fit_head(model(), {"z": Z}, Y, verbose=0, **COUNTS),
    "fit": lambda: layers.PlattScaling().fit(Z, Y, **COUNTS),
    "a log": lambda: kc.fit_calibrator(layers.PlattScaling(), log(), 0, **COUNTS),
    "an update": lambda: kc.update_calibrator(layers.PlattScaling(), log(), 0.0, 0, **COUNTS),
    "settings of a fit": lambda: layers.PlattScaling().fit(Z, Y, settings=SETTINGS),
    "settings, in a model": lambda: kc.fit_head(model(), {"z": Z}, Y, settings=SETTINGS, verbose=0),
    "numbers": lambda: scores(features={"x": Z}, numeric=["x"]),
    "gap": lambda: scores(time=(DAY * 86_400.0, 7), methods="identity"),
    "knots of no column": lambda: layers.FieldBias({"site": 3}, num_knots=8),
    "knots of no number": lambda: layers.FieldNetwork({"site": 3}, num_numeric_knots=8),
    "coarse knots": lambda: layers.FieldNetwork({"site": 3}, num_coarse_knots=8),
    "number of given knots": lambda: layers.ILPS(num_knots=7, knots=[-1.0, 0.0, 1.0]),
}
REFUSED = {
    "gap without times": lambda: scores(time=(None, 7)),
    "time": lambda: layers.PlattScaling().fit(Z, Y, time=DAY),
    "time of a field": lambda: layers.FieldBias({"site": 3}).fit(Z, Y, LOG, time=DAY),
    "folds": lambda: scores(time=DAY, folds=3),
    "probability": lambda: log(probability="p"),
    "since": lambda: kc.monitor(monitor_sums(log(timestamp="at")), Periods(since="2025-01-01")),
    "folds of a share": lambda: metrics.CalibratedLogLoss(num_folds=5, bias_fraction=0.5),
    "members": lambda: layers.NeuralCalibration(layers.ILPS(), num_members=3),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_says_nothing_is_warned_about(name):
    says = "ha(s|ve) no effect|uses `numeric`|are not used|leaves out no row"
    with pytest.warns(UserWarning, match=says):
        WARNED[name]()


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_is_refused(name):
    with pytest.raises(ValueError, match=r"^Argument `.*Received: "):
        REFUSED[name]()
