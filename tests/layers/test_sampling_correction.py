"""SamplingCorrection: the exact shift for negatives that were kept at a known rate."""

import keras
import numpy as np
import pytest

from keras_calibration.layers import SamplingCorrection


def corrected(layer, *arguments):
    return keras.ops.convert_to_numpy(keras.ops.sigmoid(layer(*arguments))).reshape(-1)


@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.5, 1])
def test_it_is_bayes_rule(rate):
    p = np.array([1e-3, 0.1, 0.5, 0.9, 0.999])
    # Of all rows, a share q is positive; the rest is kept at the rate.
    expected = p * rate / (p * rate + 1 - p)
    logits = np.log(p) - np.log1p(-p)
    np.testing.assert_allclose(corrected(SamplingCorrection(rate), logits), expected, rtol=1e-5)
    columns = {"kept": np.full((5, 1), rate), "other": np.zeros(5)}
    by_column = corrected(SamplingCorrection("kept"), logits, columns)
    np.testing.assert_allclose(by_column, expected, rtol=1e-5)


def test_rates_that_are_none_give_nan_and_are_refused_by_fit():
    layer = SamplingCorrection("kept")
    rates = np.array([0.5, 0.0, 2.0, np.nan, -1.0])
    received = keras.ops.convert_to_numpy(layer(np.zeros(5), {"kept": rates}))[:, 0]
    assert np.isfinite(received).tolist() == [True, False, False, False, False]
    with pytest.raises(ValueError, match=r"'kept'.*4 of 5 rows.*row 1"):
        layer.fit(np.zeros(5), [0, 1, 0, 1, 0], {"kept": rates})
    with pytest.raises(ValueError, match=r"Received: no 'kept'"):
        layer(np.zeros(5))
