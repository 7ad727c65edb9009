"""Subclasses of the metrics on a scored log: by its sums, or row by row where these differ."""

import numpy as np
import pandas as pd
import pytest
from keras import ops

from backends import digits
from keras_calibration.logs import ScoredLog
from keras_calibration.metrics import CalibratedLogLoss, LogLoss, NormalizedEntropy
from keras_calibration.scoring import log_queries, score


class Bits(LogLoss):
    """The log loss in bits: the same sums, another result."""

    def result(self):
        return super().result() / np.log(2)


class Capped(LogLoss):
    """Other sums: a logit counts as one within ±1."""

    def __init__(self, cap=1.0, name="capped", dtype=None):
        super().__init__(from_logits=True, name=name, dtype=dtype)
        self.cap = cap

    def add_rows(self, y_true, y_pred, sample_weight):
        super().add_rows(y_true, ops.clip(y_pred, -self.cap, self.cap), sample_weight)

    def get_config(self):
        config = super().get_config()
        del config["from_logits"]
        return {**config, "cap": self.cap}


class Shifted(LogLoss):
    """As `Capped`, by the method that Keras calls."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true, y_pred + 1.0, sample_weight)


class Calibrated(CalibratedLogLoss):
    """Nothing else."""


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    logit = rng.normal(-0.5, 2.0, 400)
    label = (rng.random(400) < 1 / (1 + np.exp(-logit))).astype(int)
    return pd.DataFrame({"label": label, "probability": 1 / (1 + np.exp(-logit))})


def by_rows(frame, logits):
    return np.mean(np.logaddexp(0, logits) - frame["label"] * logits)


def test_a_subclass_has_the_sums_of_its_base(frame):
    logits = np.log(frame["probability"] / (1 - frame["probability"]))
    bits, calibrated = Bits(name="bits"), Calibrated(name="calibrated")
    # Two metrics share a query.
    queries = log_queries(ScoredLog(frame), [NormalizedEntropy(), bits, calibrated])
    assert list(queries) == ["totals", "moments/2/None/0"]
    assert list(queries["totals"].sums) == ["loss", "positives", "negatives", "weight"]
    scores = score(ScoredLog(frame), [bits, calibrated, CalibratedLogLoss()], verbose=0)
    assert scores["bits"] == pytest.approx(by_rows(frame, logits) / np.log(2), rel=digits(1e-9))
    assert scores["calibrated"] == pytest.approx(scores["calibrated_log_loss"], rel=digits(1e-12))


def test_a_subclass_that_adds_other_sums_reads_the_rows(frame):
    logits = np.log(frame["probability"] / (1 - frame["probability"]))
    capped, shifted = Capped(), Shifted(from_logits=True, name="shifted")
    for metric in (capped, shifted):
        assert not metric.has_log_sums
        with pytest.raises(ValueError, match=type(metric).__name__):
            log_queries(ScoredLog(frame), metric)
    scores = score(ScoredLog(frame), [capped, shifted], verbose=0)
    assert scores["capped"] == pytest.approx(by_rows(frame, np.clip(logits, -1, 1)), rel=1e-6)
    assert scores["shifted"] == pytest.approx(by_rows(frame, logits + 1), rel=1e-6)
    assert Capped.from_config(Capped(cap=0.5).get_config()).cap == 0.5
