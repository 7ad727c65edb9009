"""Rows in order of time: what is fitted to the past is judged on what came next."""

import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc
from calibration.test_calibrate import NUM_ROWS, base_model, make_rows, weight_of
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers import row_folds
from keras_calibration.calibration.splits import splits_of

CURVES = ("bias", "platt", "beta", "ilps")
BLOCK = np.arange(NUM_ROWS) * 8 // NUM_ROWS


def drifting(shifts):
    """Rows whose rate is off by another amount in each chronological block."""
    x, _ = make_rows(lambda logit, site, price: logit)
    eta = x["score"][:, 0] + np.array(shifts)[BLOCK]
    return x, (np.random.default_rng(1).random(NUM_ROWS) < expit(eta)).astype("float32")


@pytest.mark.slow
def test_a_bias_that_does_not_last_is_not_corrected():
    x, y = drifting([1.0, -0.6, 1.0, -0.6, 1.0, -0.6, 1.0, -0.6])
    reports = {
        time: kc.calibrate(base_model(), x, y, time=time, verbose=0).report
        for time in (None, "order")
    }
    assert weight_of(reports["order"], ["identity"]) > 0.8
    assert weight_of(reports[None], CURVES) > 0.8


def test_a_bias_that_lasts_is():
    x, y = drifting([0.6, 0.8, 0.7, 0.9, 0.7, 0.6, 0.8, 0.7])
    model = kc.calibrate(base_model(), x, y, time="order", verbose=0)
    assert weight_of(model.report, CURVES) > 0.8
    true = expit(x["score"][:, 0] + 0.725)
    np.testing.assert_allclose(
        model.predict(x, verbose=0, batch_size=NUM_ROWS)[:, 0], true, atol=0.03
    )
    assert "in 8 chronological blocks; each block after the first is scored by" in str(model.report)
    assert model.report.num_rows == NUM_ROWS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "share_left"),
    [("field_bias", 0.5), ("field_ilps", 0.5), ("trees", 0.5), ("neural", 0.8)],
)
def test_every_kind_of_candidate_looks_forward(method, share_left, monkeypatch):
    monkeypatch.setattr(row_folds, "_BLOCKS_OF_TIME", 3)  # a network compiles for each
    x, y = make_rows(lambda logit, site, price: logit + np.linspace(-1.5, 1.5, 6)[site], 1500)
    arguments = {"fields": ["site"], "numeric": ["price"], "time": "order", "verbose": 0}
    base = base_model()
    before = base.predict(x, verbose=0)[:, 0]
    model = kc.calibrate(base, x, y, methods=method, **arguments)
    assert model.report.after.log_loss_change < -2 * model.report.after.log_loss_change_error
    assert model.report.is_forward
    after = model.predict(x, verbose=0)[:, 0]
    sites = [x["site"] == site for site in range(6)]
    wrong = [max(abs(np.mean(p[site] - y[site])) for site in sites) for p in (before, after)]
    # A network alone is slow to learn on so few rows.
    assert wrong[1] < share_left * wrong[0]


def test_the_past_must_hold_both_classes():
    labels = np.repeat([0.0, 1.0], [300, 700])
    rows = Rows(np.zeros(1000), labels, None, times=np.arange(1000.0))
    with pytest.raises(ValueError, match=r"`folds`.*fold 1 has 125 rows"):
        splits_of(None, rows)
    assert len(list(splits_of("blocks", Rows(rows.logits, labels, None)).parts)) == 5
