"""`update`: new rows added to those of earlier fits, also after saving."""

import keras
import numpy as np
import pytest

from every_head import STREAMING
from keras_calibration.layers import (
    ILPS,
    BetaCalibration,
    PlattScaling,
)


def hours(num_hours=4, num_rows=3000):
    """Rows of some hours: the click rate goes up from hour to hour."""
    generator = np.random.default_rng(0)
    for hour in range(num_hours):
        logits = generator.normal(-2, 1.5, num_rows)
        labels = generator.random(num_rows) < 1 / (1 + np.exp(-0.8 * logits - 0.5 * hour))
        yield logits, labels.astype(float), None, generator.choice([0.5, 2.0], num_rows)


def together(*parts):
    """The rows of all parts, in the order of the arguments of `fit`."""
    logits, labels, _, weights = zip(*parts, strict=True)
    return np.concatenate(logits), np.concatenate(labels), None, np.concatenate(weights)


COUNTS = {"weights_are": "counts"}


def counted(*parts):
    """The rows of parts with weights that are numbers of rows."""
    return [(*part[:3], 2 * part[3]) for part in parts]


def outputs(layer):
    grid = np.linspace(-8, 6, 50, dtype=np.float32)
    return keras.ops.convert_to_numpy(layer(grid))


@pytest.mark.parametrize("layer_class", STREAMING)
def test_forgetting_weighs_old_rows_less(layer_class):
    first, second = counted(*hours(2))
    streamed, weighted = layer_class(), layer_class()
    streamed.fit(*first, **COUNTS)
    summary = streamed.update(*second, forget=0.75, **COUNTS)
    new = (*second[:3], 4 * second[3])  # a quarter of the old rows, up to a common factor
    weighted.fit(*together(first, new), **COUNTS)
    # A quarter of the prior counts for four times the rows: nothing but the prior of ILPS does.
    if layer_class is not ILPS:
        np.testing.assert_allclose(outputs(streamed), outputs(weighted), rtol=1e-3, atol=1e-3)
    kept, all_rows = streamed.histogram, weighted.histogram
    np.testing.assert_allclose(4 * kept.positives, all_rows.positives)
    np.testing.assert_allclose(4 * kept.negatives, all_rows.negatives)
    assert summary.num_rows == round(0.25 * first[3].sum() + second[3].sum())
    streamed.update(*second, forget=1.0, **COUNTS)
    weighted.fit(*second, **COUNTS)
    # Knots lie on the bins that the first fit has chosen; a beta curve bends within bins.
    accuracy = {ILPS: 1e-2, BetaCalibration: 2e-5}.get(layer_class, 1e-5)
    np.testing.assert_allclose(outputs(streamed), outputs(weighted), rtol=accuracy, atol=accuracy)


def test_an_hour_of_one_class_is_welcome_and_a_stream_of_one_class_is_not():
    layer = PlattScaling()
    with pytest.raises(ValueError, match=r"`labels`.*one class"):
        layer.update([0.0, 1.0], [0, 0])
    layer.fit(*next(hours()))
    before = layer.bias
    layer.update(np.full(500, -1.0), np.zeros(500))
    assert layer.bias < before


@pytest.mark.parametrize("forget", [-0.1, 1.5, np.nan])
def test_refused_updates_leave_the_layer_as_it_was(forget):
    first, second = list(hours(2))
    layer, other = PlattScaling(), PlattScaling()
    layer.fit(*first)
    other.fit(*first)
    with pytest.raises(ValueError, match="`forget`"):
        layer.update(*second, forget=forget)
    with pytest.raises(ValueError, match=r"logits.*nan in row 0"):
        layer.update([np.nan], [1])
    assert layer.bias == other.bias
    # Python 3.13 compares the NaN of two records, and they differ.
    assert repr(layer.update(*second)) == repr(other.update(*second))


@pytest.mark.parametrize("layer_class", STREAMING)
def test_update_does_not_forget_what_was_learnt_without_a_histogram(layer_class):
    first, second = list(hours(2))
    layer = layer_class()
    layer.ensure_built()
    weights = [weight + 0.2 * (weight.shape == ()) for weight in map(np.array, layer.get_weights())]
    if layer_class is ILPS:
        layer.adapt(*first)
        weights = layer.get_weights()
        weights[0] = weights[0] - 0.3
    layer.set_weights(weights)
    before = outputs(layer)
    with pytest.raises(ValueError, match=rf"`update`.*{layer_class.__name__}.*`fit`"):
        layer.update(*second)
    np.testing.assert_array_equal(outputs(layer), before)


def test_update_is_the_first_fit_of_a_layer_that_has_only_adapted():
    first, second = list(hours(2))
    layer, fresh = ILPS(), ILPS()
    layer.adapt(*first)
    assert repr(layer.update(*second)) == repr(fresh.update(*second))


def test_weights_in_another_unit_are_warned_of():
    first, second = list(hours(2))
    layer = PlattScaling()
    layer.fit(*first[:2])
    before = layer.bias
    with pytest.warns(UserWarning, match=r"another unit: about 0\.000333.* about 1 "):
        layer.update(*second[:3], np.full(3000, 1 / 3000))
    assert layer.bias == pytest.approx(before, abs=1e-3)
    layer.update(*second[:3], np.full(3000, 1 / 3000), forget=1.0)  # nothing to compare with
    layer.update(*(column[:5] for column in second[:2]), sample_weight=np.full(5, 1e-6))  # too few
