"""What is asked of the normalised entropy beside its reference (`test_references.py`)."""

import math

import numpy as np
import pytest

from backends import digits, needs_float64
from keras_calibration.metrics import NormalizedEntropy


@needs_float64  # a batch of a million is summed in it
def test_a_rare_positive_among_millions():
    metric = NormalizedEntropy()
    for positives in (1, 0):
        metric.update_state(np.arange(10**6) < positives, np.full(10**6, 5e-7))
    assert float(metric.result()) == pytest.approx(1, rel=1e-9)


def test_one_negative_among_a_million():
    """In float32 too, where the mean label is rounded to 1."""
    metric = NormalizedEntropy(from_logits=True)
    metric.update_state([0.0, 1.0], [0.0, 0.0], [1.0, 1e6])
    entropy = math.log1p(1e6) - 1e6 / (1e6 + 1) * math.log(1e6)
    assert float(metric.result()) == pytest.approx(math.log(2) / entropy, rel=digits(1e-9))
