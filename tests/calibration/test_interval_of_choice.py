"""Intervals of what `calibrate` returns: one method has them, a blend says why it has none."""

import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc

RNG = np.random.default_rng(0)
NUM = 3000
TABLE = {"logit": RNG.normal(-1, 1, NUM), "site": RNG.integers(0, 5, NUM)}
CHANCE = expit(0.7 * TABLE["logit"] + 0.3 * TABLE["site"] - 0.2)
TABLE["clicked"] = (RNG.random(NUM) < CHANCE).astype(float)
ROWS = {"score": TABLE["logit"][:3], "site": TABLE["site"][:3]}


def calibrated(methods, labels="clicked"):
    options = {"from_logits": True, "fields": ["site"], "methods": methods, "verbose": 0}
    return kc.calibrate_scores("logit", labels, TABLE, **options)


def test_a_blend_says_why_it_has_none_and_what_to_ask_for(tmp_path):
    model = calibrated(["platt", "field_bias"])
    assert model.report.chosen == "blend"
    why = r"BlendedHead has no interval, because .*errors.*FieldBias.*methods=\"field_bias\""
    with pytest.raises(ValueError, match=why):
        kc.interval(model, ROWS)
    with pytest.raises(ValueError, match=why):
        kc.export_savedmodel(model, tmp_path / "1", ROWS, interval=0.95)
    assert not list(tmp_path.iterdir())
    lower, upper = kc.interval(calibrated("field_bias"), ROWS)
    assert (lower[:, 0] < CHANCE[:3]).all()
    assert (CHANCE[:3] < upper[:, 0]).all()


def test_a_model_that_stays_says_what_to_ask_for():
    calm = (np.random.default_rng(1).random(NUM) < expit(TABLE["logit"])).astype(float)
    model = calibrated(["bias", "platt"], calm)
    assert model.report.chosen == "identity"
    with pytest.raises(ValueError, match=r"`interval`.*`calibrate`.*methods=\"platt\""):
        kc.interval(model, ROWS)
    lower, upper = kc.interval(calibrated("platt", calm), ROWS)
    assert (lower < upper).all()
