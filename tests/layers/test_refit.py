"""fit_head against the model as it was: cross-fitted figures, and the head that stays."""

import functools
import itertools
import warnings

import numpy as np
import pytest

import every_head
import keras_calibration as kc
import site_worlds
from site_worlds import mean_loss, model_with
from tiers import slow_except

OTHERS = ("BoostedTrees", "VectorScaling")  # of numbers and of classes, which the rows lack
HEADS = {
    name: make
    for name, (make, _) in every_head.HEADS.items()
    if name.isidentifier() and name not in OTHERS
}
NETWORK_SETTINGS = kc.layers.FitSettings(folds=2, max_epochs=5, learning_rate=0.02)
world = functools.partial(site_worlds.world, offsets=0.3 * (np.arange(4) - 1.5) - 0.7)


def shifted(model, head, by):
    """Moves the weights that gradients train, as a joint training would."""
    for weight in head.trainable_weights:
        weight.assign(np.asarray(weight) + by)
    return model


STATES = [*itertools.product(HEADS, ["new", "trained"])]
QUICK = [("PlattScaling", "new"), ("FieldBias", "new")]
QUICK += [("BlendedHead", "trained"), ("NeuralCalibration", "trained")]


@pytest.mark.parametrize("case", slow_except(QUICK, STATES), ids=" ".join)
@pytest.mark.filterwarnings("ignore:The mean prediction is")  # of a temperature
def test_before_is_the_model_as_it_was(case):
    name, state = case
    x, y = world(1500)
    head = HEADS[name]()
    model = model_with(head)
    if state == "trained":
        shifted(model, head, 0.05)
    loss = mean_loss(y, model.predict(x, batch_size=1500, verbose=0))
    settings = NETWORK_SETTINGS if name == "NeuralCalibration" else None
    summary = kc.fit_head(model, x, y, settings=settings, verbose=0)
    assert summary.log_loss_before == pytest.approx(loss, abs=2e-6)
    assert summary.is_used
    assert summary.change < 0
    # The cross-fitted loss is above that of the rows of the fit, and near to that of new rows.
    if name != "NeuralCalibration":  # each fold has a network of its own
        assert summary.log_loss_before + summary.change >= summary.log_loss_in_sample - 1e-9
    new_x, new_y = world(20_000, seed=1)
    new = mean_loss(new_y, model.predict(new_x, batch_size=20_000, verbose=0))
    assert summary.log_loss_before + summary.change == pytest.approx(new, abs=0.03)
    # Fitted to these rows, it is not compared with itself.
    again = kc.fit_head(model, x, y, settings=settings, verbose=0)
    assert np.isnan(again.change)
    assert again.is_used
    if name != "NeuralCalibration":  # which is trained anew
        assert again.log_loss_before == pytest.approx(again.log_loss_in_sample, abs=1e-6)


@pytest.mark.parametrize("name", slow_except(("PlattScaling", "ILPS", "FieldBias"), HEADS))
@pytest.mark.filterwarnings("ignore:The mean prediction is", "ignore:.*best scale of the logit")
def test_the_head_stays_exactly_where_the_fit_is_worse(name):
    """A head that is right, and few new rows, which by chance have another fit or not."""
    head = HEADS[name]()
    model = model_with(head)
    kc.fit_head(model, *world(20_000, seed=5), verbose=0)
    weights = [np.array(weight) for weight in head.get_weights()]
    stayed = 0
    for seed in range(8):
        head.set_weights(weights)
        few, labels = world(40, seed=seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            summary = kc.fit_head(model, few, labels, verbose=0)
        messages = [str(warning.message) for warning in caught]
        told = [message for message in messages if "stays as it was" in message]
        assert summary.is_used == (not told) == (summary.change <= 0)
        same = all(map(np.array_equal, head.get_weights(), weights))
        assert same == bool(told)
        assert ("stays as it was" in str(summary)) == bool(told)
        stayed += bool(told)
        if 0 < stayed <= seed:  # both have happened
            break
    assert stayed
    head.set_weights(weights)
    few, labels = world(40, seed=seed)
    forced = kc.fit_head(model, few, labels, only_if_better=False, verbose=0)
    assert forced.is_used
    assert not all(map(np.array_equal, head.get_weights(), weights))


def test_too_few_rows_for_folds_are_fitted_without_a_comparison():
    model = model_with(kc.layers.BiasCorrection())
    x = {"score": np.zeros(4, "float32"), "site": np.zeros(4, "int32")}
    summary = kc.fit_head(model, x, np.array([0, 0, 0, 1]), verbose=0)
    assert np.isnan(summary.change)
    assert summary.is_used


def test_folds_of_the_settings_are_those_of_the_rows_as_given():
    """Blocks are of rows in their order, and equal to the same folds given row by row."""
    x, y = world(600)
    y = y * (np.arange(600) % 10 < np.linspace(12, 3, 600))  # the rate falls with the rows
    blocks = np.arange(600) * 5 // 600
    found = {}
    for name, folds in (("blocks", "blocks"), ("given", blocks), ("drawn", 5)):
        head = kc.layers.BlendedHead([kc.layers.FieldBias({"site": 4}), kc.layers.PlattScaling()])
        settings = kc.layers.FitSettings(folds=folds)
        summary = kc.fit_head(model_with(head), x, y, settings=settings, verbose=0)
        found[name] = head.bias[0], summary.change
    np.testing.assert_allclose(found["blocks"], found["given"], rtol=1e-5)
    assert abs(found["blocks"][0] - found["drawn"][0]) > 1e-4
    assert found["blocks"][1] > found["drawn"][1]


def test_folds_of_the_settings_do_not_divide_groups():
    x, y = world(600)
    model = model_with(kc.layers.BlendedHead([kc.layers.PlattScaling()]))
    settings = kc.layers.FitSettings(folds=np.arange(600) % 3)
    with pytest.raises(ValueError, match="`folds`"):
        kc.fit_head(model, x, y, groups=np.arange(600) // 2, settings=settings, verbose=0)


@pytest.mark.parametrize("seed", range(4))
def test_a_head_with_nothing_to_fit_stays(seed):
    """Rounding is no evidence, neither for a fit nor against it."""
    x, y = world(500, seed=seed)
    model = model_with(kc.layers.SamplingCorrection(0.5))
    summary = kc.fit_head(model, x, y, verbose=0)
    assert summary.change == 0
    assert not summary.is_used
    assert "stays as it was" in str(summary)
