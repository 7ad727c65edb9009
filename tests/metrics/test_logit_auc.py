"""What is asked of the AUC beside its reference (`test_references.py`)."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from keras_calibration.metrics import LogitAUC


def score(labels, logits):
    metric = LogitAUC(from_logits=True)
    metric.update_state(labels, logits)
    return float(metric.result())


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_is_right_where_positives_are_rare(spread):
    rng = np.random.default_rng(1)
    logits = rng.normal(-7, spread, 500_000).astype("float32")
    labels = rng.random(500_000) < 1 / (1 + np.exp(-logits.astype(float)))
    exact = roc_auc_score(labels, logits)
    assert score(labels.astype(float), logits) == pytest.approx(exact, abs=3e-4)


@pytest.mark.parametrize(("mean", "spread"), [(25, 3), (-40, 5), (0, 20)])
def test_a_shifted_or_steep_pipeline_is_right(mean, spread):
    rng = np.random.default_rng(0)
    z = rng.normal(size=5000)
    labels = (rng.random(5000) < 1 / (1 + np.exp(-z))).astype("float32")
    logits = (mean + spread * z).astype("float32")
    assert score(labels, logits) == pytest.approx(roc_auc_score(labels, z), abs=1e-4)
