"""Whatever the rows, a calibrator fits them or refuses them, and stays a calibrator."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import HOSTILE_ROWS, examples
from every_head import CALIBRATORS
from keras_calibration import layers

MAKERS = {
    **{kind.__name__: kind for kind in CALIBRATORS},
    "ILPS": lambda: layers.ILPS(6),
    "ILPS, rough": lambda: layers.ILPS(6, smoothness=0.0, extrapolation="constant"),
    "ILPS, auto": lambda: layers.ILPS(6, smoothness="auto"),
}
# By how many nats of all rows together the log loss may rise for the sake of a prior.
ROOM = {"BiasCorrection": 0.0, "TemperatureScaling": 0.0, "PlattScaling": 0.0}
ROOM["BetaCalibration"] = 0.1 * (1 + 1e-6)
GRID = np.float32([-1e30, -500, -20, -2, -1, 0, 0.3, 7, 41, 1e30])


def called(layer):
    return keras.ops.convert_to_numpy(layer(GRID)).astype(np.float64)


@settings(max_examples=examples(160))
@given(st.sampled_from(sorted(MAKERS)), HOSTILE_ROWS)
@pytest.mark.filterwarnings("ignore:.*the best scale:UserWarning")
@pytest.mark.filterwarnings("ignore:The sample weights:UserWarning")
def test_any_rows_are_fitted_or_refused(name, rows):
    logits, labels, weights = map(np.array, zip(*rows, strict=True))
    layer = MAKERS[name]()
    before = called(layer)
    try:
        summary = layer.fit(logits, labels, sample_weight=weights)
    except ValueError as error:
        summary, refusal = None, str(error)
    if summary is None:
        reasons = ["one class", "`sample_weight`"]
        reasons += ["too large or infinite"] * (name in ("PlattScaling", "TemperatureScaling"))
        assert any(reason in refusal for reason in reasons)
        np.testing.assert_array_equal(called(layer), before)
        return
    assert all(np.isfinite(w).all() for w in layer.get_weights()) or name == "IsotonicRegression"
    assert np.isfinite([summary.log_loss_before, summary.log_loss_in_sample]).all()
    curve = called(layer)
    assert np.isfinite(curve).all()
    assert (np.diff(curve) >= -1e-6 * np.abs(curve[1:-1]).max()).all()
    if name in ROOM:
        most = summary.log_loss_before * (1 + 1e-9) + ROOM[name] / weights.sum() + 1e-9
        assert summary.log_loss_in_sample <= most
    counted = weights > 0
    again = MAKERS[name]()
    again.fit(logits[counted], labels[counted], sample_weight=weights[counted])
    np.testing.assert_allclose(called(again), curve, rtol=1e-5, atol=1e-6)
