"""Every number of `score` and `score_by_period`, of arrays and of a log, from the raw rows."""

import numpy as np
import pandas as pd
import pytest
from scipy import special

import metric_references as references
from keras_calibration.logs import ScoredLog
from keras_calibration.metrics import (
    CalibratedQuadraticLoss,
    ExpectedCalibrationError,
    FieldECE,
    FieldRCE,
    LogitAUC,
)
from keras_calibration.scoring import score, score_by_period
from metric_cases import scored_metrics

DAYS = ["2026-03-06", "2026-03-07", "2026-03-09", "2026-03-10"]


def rows_of(num=1800):
    rng = np.random.default_rng(6)
    p, site = rng.uniform(0.02, 0.9, num).round(4), rng.integers(0, 4, num)
    y = (rng.random(num) < p**1.3).astype(float)
    return references.Rows(y, p, rng.uniform(0.5, 2, num), np.arange(num), site, dtype="float64")


def expected_of(rows):
    return {
        "log_loss": references.log_loss(rows),
        "normalized_entropy": references.normalized_entropy(rows),
        "calibration_ratio": references.calibration_ratio(rows),
        "calibrated_log_loss": references.calibrated_log_loss(rows),
        "of_three": references.calibrated_log_loss(rows, num_folds=3, seed=5),
        "held_out": references.calibrated_log_loss(rows, bias_fraction=0.3),
        "site_field_ece": references.field_error(rows, 4),
        "site_field_rce": references.field_error(rows, 4, 0.01),
    }


def test_arrays():
    rows = rows_of()
    others = [CalibratedQuadraticLoss(), ExpectedCalibrationError(num_bins=10), LogitAUC()]
    arrays = (rows.labels, rows.predictions, rows.weights, {"site": rows.ids})
    fields = {"site": [FieldECE(4), FieldRCE(4)]}
    found = score(arrays, [*scored_metrics(), *others], field_metrics=fields, verbose=0)
    area, of_one_bin = references.auc(rows)
    assert abs(found.pop("logit_auc") - area) <= of_one_bin
    expected = expected_of(rows) | {
        "calibrated_quadratic_loss": references.calibrated_quadratic_loss(rows),
        "expected_calibration_error": references.equal_width_error(rows, 10, np.linspace(0, 1, 11)),
    }
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_log_and_its_periods():
    rows, day = rows_of(), np.sort(np.arange(1800) % 4)
    rows.labels[day == 2] = 0  # no bias: that of the day before goes on
    rows.weights[::7] = 0
    frame = pd.DataFrame(
        {
            "label": rows.labels,
            "probability": rows.predictions,
            "weight": rows.weights,
            "site": np.array(list("abcd"))[rows.ids],
            "at": pd.to_datetime(DAYS)[day],
        }
    )
    log = ScoredLog(frame, sample_weight="weight", fields=["site"], timestamp="at")
    assert score(log, scored_metrics(), verbose=0) == pytest.approx(expected_of(rows), rel=1e-6)

    found, bias = score_by_period(log, scored_metrics(), verbose=0), np.nan
    assert list(found) == DAYS
    for number, results in enumerate(found.values()):
        of_day = rows[day == number]
        # The bias of the day before.
        losses = -special.log_expit((2 * of_day.labels - 1) * (of_day.logits + bias))
        rolling = np.average(losses, weights=of_day.weights)
        names = ("calibrated_log_loss", "of_three", "held_out")
        expected = expected_of(of_day) | {f"rolling_{name}": rolling for name in names}
        assert results == pytest.approx(expected, rel=1e-6, nan_ok=True)
        bias = bias if number == 2 else references.best_bias(of_day)
