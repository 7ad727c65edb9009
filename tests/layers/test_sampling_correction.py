"""SamplingCorrection: the exact shift for negatives that were kept at a known rate."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import SamplingCorrection


def probability(logits):
    return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))


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


def test_a_model_of_sampled_rows_is_right_among_all_rows():
    """Down-sampled by a rate that differs from row to row, and trained on what is left."""
    generator = np.random.default_rng(0)
    score = generator.normal(0, 1, 60_000).astype("float32")
    labels = generator.random(60_000) < probability(score - 3)
    rates = np.where(score > 0, 0.5, 0.05).astype("float32")
    kept = labels | (generator.random(60_000) < rates)
    shift = kc.layers.BiasCorrection()
    inputs = {"score": keras.Input((), name="score"), "kept": keras.Input((), name="kept")}
    # The best model of the sampled rows: the truth, and the shift of the sample.
    sampled = inputs["score"] - 3 - keras.ops.log(inputs["kept"])
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(sampled))
    x = {"score": score, "kept": rates}
    sample_probability = probability(score[kept] - 3 - np.log(rates[kept]))
    assert sample_probability.mean() == pytest.approx(labels[kept].mean(), rel=0.05)
    model = kc.models.CalibratedModel(base, SamplingCorrection("kept"))
    received = model.predict(x, batch_size=8192, verbose=0)[:, 0]
    np.testing.assert_allclose(received, probability(score - 3), rtol=1e-4)
    assert received.mean() == pytest.approx(labels.mean(), rel=0.05)
    summary = shift.fit(np.log(received) - np.log1p(-received), labels)
    assert abs(shift.bias) < 0.1
    assert summary.log_loss_after == pytest.approx(summary.log_loss_before, abs=1e-4)


def test_rates_that_are_none_give_nan_and_are_refused_by_fit():
    layer = SamplingCorrection("kept")
    rates = np.array([0.5, 0.0, 2.0, np.nan, -1.0])
    received = keras.ops.convert_to_numpy(layer(np.zeros(5), {"kept": rates}))[:, 0]
    assert np.isfinite(received).tolist() == [True, False, False, False, False]
    with pytest.raises(ValueError, match=r"rates in \(0, 1\]. Received: 4 of 5 rows.*row 1"):
        layer.fit(np.zeros(5), [0, 1, 0, 1, 0], {"kept": rates})
    with pytest.raises(ValueError, match=r"without \['kept'\]"):
        layer(np.zeros(5))
