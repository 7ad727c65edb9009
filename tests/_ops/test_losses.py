"""Log loss from logits, logits from probabilities."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import examples, gradients
from keras_calibration._ops import losses as kernels


def reference_log_loss(label, logit):
    one = max(-logit, 0) + math.log1p(math.exp(-abs(logit)))  # -log σ(l)
    zero = max(logit, 0) + math.log1p(math.exp(-abs(logit)))  # -log(1 - σ(l))
    return label * one + (1 - label) * zero


def reference_logit(probability):
    if not 0 <= probability <= 1:
        return math.nan
    return math.log(max(probability, 2.0**-53)) - math.log(max(1 - probability, 2.0**-53))


def test_log_loss_equals_the_reference(run, dtype, tolerance):
    logits = np.array([-1e4, -80, -20, -10, -1, -1e-6, -0.0, 0, 1e-6, 1, 10, 20, 80, 1e4])
    labels, logits = (
        array.ravel().astype(dtype) for array in np.meshgrid([0, 0.001, 0.3, 0.999, 1], logits)
    )
    received = run(kernels.log_loss_from_logits, labels, logits, num_of_any_size=2)
    assert received.dtype == dtype
    expected = [
        reference_log_loss(*row) for row in zip(labels.tolist(), logits.tolist(), strict=True)
    ]
    # Below the smallest normal float32 there is nothing to be right about.
    np.testing.assert_allclose(received, expected, rtol=tolerance, atol=2e-38)


@settings(max_examples=examples(50))
@given(
    st.floats(0, 1, width=32, allow_subnormal=False),
    st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
)
def test_log_loss_of_hostile_rows(label, logit):
    received = float(kernels.log_loss_from_logits(np.float32(label), np.float32(logit)))
    assert received == pytest.approx(reference_log_loss(label, logit), rel=1e-5, abs=2e-38)


def test_log_loss_gradient_is_probability_minus_label(run):
    logits = np.float32([-30, -1, 0, 0, 2, 30])
    labels = np.float32([0, 1, 0, 1, 0.25, 1])

    def gradient(labels, logits):
        return gradients(lambda values: kernels.log_loss_from_logits(labels, values), logits)[0]

    expected = 1 / (1 + np.exp(-logits.astype(float))) - labels
    np.testing.assert_allclose(run(gradient, labels, logits), expected, rtol=1e-5, atol=1e-7)


def test_logits_from_probabilities_equal_the_reference(run, dtype, tolerance):
    probabilities = [0, 1e-45, 1e-38, 1e-30, 1e-4, 0.3, 0.5, 0.9, 1 - 2**-24, 1 - 1e-12, 1]
    probabilities = np.array([*probabilities, -0.0, -1e-6, 1 + 1e-6, 5, np.inf, np.nan], dtype)
    received = run(kernels.logits_from_probabilities, probabilities, num_of_any_size=1)
    assert received.dtype == dtype
    expected = [reference_logit(probability) for probability in probabilities.tolist()]
    np.testing.assert_allclose(received, expected, rtol=tolerance, atol=tolerance)
    assert np.isfinite(received[:12]).all()
    assert np.isnan(received[12:]).all()
    assert (np.diff(received[:11]) >= 0).all()
