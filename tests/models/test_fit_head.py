"""`fit_head` of a calibrated model: the head's own `fit`, on the logits of the base model."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import (
    ILPS,
    FieldNetwork,
    NeuralCalibration,
    PlattScaling,
)
from keras_calibration.layers.fits import is_as_fitted
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.models import CalibratedModel
from trained_heads import train_head

NUM_SITES = 6
SITE_BIAS = np.array([-1.0, -0.5, 0.0, 0.3, 0.6, 0.9])
# The base's logit as a function of the true one without the sites.
BASES = {
    "too high": lambda logit: logit + 2.2,  # as after 1:9 down-sampling of negatives
    "too steep": lambda logit: 2.5 * logit,
    "fine": lambda logit: logit,
}


def draw(num_rows, base="too high", seed=0):
    """Inputs of `make_base` and labels; the base logit is the input "l"."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(-1, 1, num_rows)
    site = rng.integers(0, NUM_SITES, num_rows).astype("int32")
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-logit - SITE_BIAS[site]))).astype("float32")
    return {"l": BASES[base](logit).astype("float32")[:, None], "site": site}, labels


def make_base():
    inputs = {
        "l": keras.Input((1,), name="l"),
        "site": keras.Input((), dtype="int32", name="site"),
    }
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["l"]))


def make_head(kind="ilps"):
    keras.utils.set_random_seed(0)
    if kind == "ilps":
        return NeuralCalibration(ILPS())
    network = FieldNetwork({"site": NUM_SITES}, embedding_dim=4, hidden_units=(8,), seed=0)
    return NeuralCalibration(ILPS(), network)


def make_model(head=None):
    return CalibratedModel(make_base(), make_head() if head is None else head)


CELLS = [(500, "too high", "ilps"), (1_000, "too steep", "network"), (50_000, "fine", "ilps")]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("num_rows", "base", "kind"), CELLS)
def test_it_is_the_heads_own_fit(num_rows, base, kind):
    x, y = draw(num_rows, base)
    model, head = make_model(make_head(kind)), make_head(kind)
    summary = kc.fit_head(model, x, y, verbose=0)
    alone = head.fit(x["l"], y, {"site": x["site"]})
    assert type(summary) is type(alone)
    assert summary.log_loss_after == pytest.approx(alone.log_loss_after, abs=1e-7)
    assert str(summary).startswith(f"{num_rows:,} rows: log loss")
    columns = x["l"][:, 0].astype("float64"), {"site": x["site"]}
    np.testing.assert_allclose(
        head_logits(model.head, *columns), head_logits(head, *columns), atol=1e-5
    )
    assert model.predict(x, verbose=0).mean() == pytest.approx(y.mean(), rel=0.01)
    assert model.head.fit_summary is summary
    assert not model.compiled
    assert alone.logits is None
    assert summary.logits["num_rows"] == num_rows
    assert summary.logits["max"] == x["l"].max()


def test_training_replaces_what_the_fit_says():
    x, y = draw(500)
    model = make_model(PlattScaling())
    kc.fit_head(model, x, y, verbose=0)
    assert is_as_fitted(model.head)
    train_head(model, x, y, learning_rate=0.05)
    assert not is_as_fitted(model.head)
    kc.fit_head(model, x, y, only_if_better=False, verbose=0)
    other = make_model(PlattScaling())
    kc.fit_head(other, x, y, verbose=0)
    np.testing.assert_array_equal(model.head.get_weights()[0], other.head.get_weights()[0])


def test_a_mean_that_the_head_cannot_correct_warns():
    x, y = draw(5_000, "fine")
    x["l"] += 0.8
    model = make_model(kc.layers.TemperatureScaling())
    with pytest.warns(UserWarning, match=r"standard errors apart.*cannot correct the mean"):
        kc.fit_head(model, x, y, verbose=0)
    assert is_as_fitted(model.head)
    kc.fit_head(make_model(PlattScaling()), x, y, verbose=0)  # a warning would be an error


def test_it_prints_its_summary(capsys):
    x, y = draw(5_000)
    summary = kc.fit_head(make_model(), x, y, verbose=1)
    shown = capsys.readouterr().out
    assert "Computing the base logits of 5,000 rows:" in shown
    assert shown.endswith(f"{summary}\n")
    kc.fit_head(make_model(), x, y, verbose=0)
    assert capsys.readouterr().out == ""


def test_counts_are_repeated_rows_and_importances_have_no_unit():
    x, y = draw(600)
    counts = np.random.default_rng(3).integers(0, 4, 600)
    repeated = np.repeat(np.arange(600), counts)

    def intercepts(rows, weights=None, **arguments):
        head = kc.layers.FieldBias({"site": NUM_SITES})
        model = CalibratedModel(make_base(), head)
        columns = {name: values[rows] for name, values in x.items()}
        kc.fit_head(model, columns, y[rows], weights, verbose=0, **arguments)
        return np.ravel(head_logits(head, np.zeros(NUM_SITES), {"site": np.arange(NUM_SITES)}))

    every = np.arange(600)
    counted = intercepts(every, counts, weights_are="counts")
    np.testing.assert_allclose(counted, intercepts(repeated), atol=1e-5)
    with pytest.warns(UserWarning, match=r'look like counts.*weights_are="counts"'):
        importance = intercepts(every, counts)
    assert np.abs(importance - counted).max() > 1e-3  # fewer rows: more shrinkage
    np.testing.assert_allclose(intercepts(every, counts * 1e-3), importance, atol=1e-5)
    with pytest.raises(ValueError, match=r"whole numbers.*such as \d\.5"):
        intercepts(every, counts + 0.5, weights_are="counts")
    with pytest.raises(ValueError, match=r"`weights_are` must be one of"):
        intercepts(every, counts, weights_are="rows")
