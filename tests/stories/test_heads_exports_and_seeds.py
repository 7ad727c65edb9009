"""Stories of hostile users: calibrators, exports, several outputs, seeds.

Each was written from the documentation alone, and is held against NumPy, SciPy or scikit-learn.
"""

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from stories import references
from stories.references import sigmoid

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

GRID = np.linspace(-4, 4, 9)


class Sites:
    """Rows of a base model `σ(1.2 price - 0.3)` that knows nothing of the site."""

    def __init__(self, num_rows=2000, seed=0):
        rng = np.random.default_rng(seed)
        self.price = rng.normal(size=num_rows).astype("float32")
        self.site = rng.integers(0, 4, num_rows)
        self.logits = 1.2 * self.price.astype("float64") - 0.3
        truth = sigmoid(0.8 * self.logits + 0.6 * (self.site - 1.5))
        self.y = (rng.random(num_rows) < truth).astype(int)
        self.later = (rng.random(num_rows) < sigmoid(0.5 * self.logits - self.site + 1)).astype(int)
        self.weights = rng.integers(0, 3, num_rows)
        self.order = rng.permutation(num_rows)


def _dense(scale, bias, activation, name="probability_of_all"):
    constant = keras.initializers.Constant
    initializers = {"kernel_initializer": constant(scale), "bias_initializer": constant(bias)}
    return keras.layers.Dense(1, activation, name=name, **initializers)


def _serve(path, x, signature="serving_default"):
    import tensorflow as tf

    served = tf.saved_model.load(str(path)).signatures[signature]
    outputs = served(**{name: tf.constant(column) for name, column in x.items()})
    return {name: values.numpy() for name, values in outputs.items()}


@pytest.fixture(scope="module")
def sites():
    return Sites()


@pytest.mark.parametrize("kind", ["int", "Int64", "bool", "float16"])
def test_platt_with_weights_of_many_kinds(kind, sites):
    from scipy import stats

    weights = pd.Series(sites.weights, index=sites.order).astype(kind)
    values = np.asarray(weights, "float64")
    layer = kc.layers.PlattScaling()
    # The rows are matched by position, and the index of the weights is in another order.
    with pytest.warns(UserWarning, match="`logits` and `sample_weight` have the same index"):
        summary = layer.fit(
            pd.Series(sites.logits),
            pd.Series(sites.y, dtype="Int8"),
            sample_weight=weights,
            weights_are="counts",
        )
    (scale, bias), hessian = references.platt(sites.logits, sites.y, values)
    np.testing.assert_allclose(layer(GRID), scale * GRID + bias, atol=1e-3)
    fitted = sigmoid(scale * sites.logits + bias)
    assert summary.log_loss_after == pytest.approx(references.log_loss(sites.y, fitted, values))
    columns = np.stack([GRID, np.ones(len(GRID))], axis=1)
    spread = np.sqrt(np.einsum("ij,jk,ik->i", columns, np.linalg.inv(hessian), columns))
    lower, upper = layer.interval(GRID, level=0.9)
    distance = stats.norm.ppf(0.95) * spread
    np.testing.assert_allclose(np.ravel(lower), sigmoid(columns @ (scale, bias) - distance), 2e-3)
    np.testing.assert_allclose(np.ravel(upper), sigmoid(columns @ (scale, bias) + distance), 2e-3)


@pytest.mark.parametrize("folds", ["own", "blocks", "time"])
def test_cross_fitted_platt_by_hand(folds, sites):
    n = len(sites.y)
    number = np.arange(n)
    blocks = {
        "own": np.random.default_rng(0).integers(0, 3, n),
        "blocks": number * 5 // n,
        "time": number * 8 // n,
    }[folds]
    p, weights = np.full(n, 0.5), np.zeros(n)
    for block in np.unique(blocks):
        others, scored = blocks != block, blocks == block
        if folds == "time":
            others = blocks < block
        if others.any():
            (scale, bias), _ = references.platt(sites.logits[others], sites.y[others])
            p[scored] = sigmoid(scale * sites.logits[scored] + bias)
            weights[scored] = others.mean() if folds == "time" else 1
    given = {
        "own": {"folds": pd.Series(blocks * 7 - 3, dtype="Int64", index=sites.order)},
        "blocks": {"folds": "blocks"},
        "time": {"time": "order"},
    }[folds]
    report = kc.calibrate_scores(
        sites.logits,
        sites.y.astype(bool),
        from_logits=True,
        methods="platt",
        verbose=0,
        **given,
    ).report
    (found,) = (score for score in report.scores if score.name == "platt")
    assert found.log_loss == pytest.approx(references.log_loss(sites.y, p, weights), rel=1e-5)
    assert found.brier == pytest.approx(np.average((sites.y - p) ** 2, weights=weights), rel=1e-5)


def test_rates_of_each_row(tmp_path):
    rng = np.random.default_rng(0)
    inputs = {"l": keras.Input((1,), name="l"), "kept": keras.Input((), name="kept")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["l"]))
    made = kc.models.CalibratedModel(base, kc.layers.SamplingCorrection("kept"))
    x = {
        "l": rng.normal(size=(50, 1)).astype("float32"),
        "kept": rng.uniform(0.01, 1, 50).astype("float32"),
    }
    expected = sigmoid(x["l"][:, 0].astype("float64") + np.log(x["kept"].astype("float64")))
    np.testing.assert_allclose(made.predict(x, verbose=0)[:, 0], expected, rtol=1e-5)
    path = kc.export_savedmodel(made, tmp_path / "1")
    np.testing.assert_allclose(_serve(path, x)["probability"][:, 0], expected, rtol=1e-5)
    x["kept"][:4] = [0, -1, 1.5, np.nan]
    found = made.predict(x, verbose=0)[:, 0]
    assert np.isnan(found).tolist() == [True] * 4 + [False] * 46


def test_two_calibrated_outputs(sites, tmp_path):
    inputs = keras.Input((1,), name="price")
    outputs = {
        "click": _dense(1.2, -0.3, "sigmoid", "c")(inputs),
        "buy": _dense(0.9, -1.0, None, "b")(inputs),
        "cost": _dense(2.0, 1.0, None, "k")(inputs),
    }
    base = keras.Model(inputs, outputs)
    x, buy_logits = sites.price[:, None], 0.9 * sites.price.astype("float64") - 1
    labels = {"click": sites.y, "buy": sites.later, "cost": np.zeros(len(x))}
    click = kc.models.CalibratedModel(base, kc.layers.PlattScaling(), calibrated_output="click")
    kc.fit_head(click, x, labels, verbose=0)
    buy = kc.models.CalibratedModel(
        click.with_all_outputs(),
        kc.layers.PlattScaling(),
        base_output="logit",
        calibrated_output="buy",
    )
    kc.fit_head(buy, x, labels, verbose=0)
    found = buy.with_all_outputs().predict(x, verbose=0)
    for name, logits in {"click": sites.logits, "buy": buy_logits}.items():
        (scale, bias), _ = references.platt(logits, labels[name])
        np.testing.assert_allclose(found[name][:, 0], sigmoid(scale * logits + bias), atol=1e-4)
    np.testing.assert_allclose(found["cost"][:, 0], 2 * sites.price + 1, rtol=1e-5, atol=1e-5)
    path = kc.export_savedmodel(buy, tmp_path / "1")
    served = _serve(path, {"price": x})
    np.testing.assert_allclose(served["probability"], found["buy"], atol=1e-5)
    np.testing.assert_allclose(served["click"], found["click"], atol=1e-5)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", ["weights, a schedule", "moving averages, frames"])
def test_seeds_against_fit(form, tmp_path):
    rng = np.random.default_rng(8)
    x, later_x = (rng.normal(size=(n, 3)).astype("float32") for n in (128, 51))
    y, later_y = ((rng.random(len(each)) < sigmoid(each[:, 0])) for each in (x, later_x))
    weights, later_weights = rng.integers(0, 3, 128), rng.integers(0, 3, 51)
    data, held_out = (x, y, weights), (later_x, later_y, later_weights)
    given = data
    if form != "weights, a schedule":
        data, held_out = data[:2], held_out[:2]
        given = (pd.DataFrame(x), pd.Series(y, index=rng.permutation(128)))

    def build():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
        optimizer = {
            "weights, a schedule": lambda: keras.optimizers.SGD(schedule, momentum=0.9),
            "moving averages, frames": lambda: keras.optimizers.Adam(
                0.05, use_ema=True, ema_overwrite_frequency=2
            ),
        }[form]()
        made = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, "relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1, "sigmoid", kernel_regularizer="l2"),
            ]
        )
        metrics = [kc.metrics.LogLoss(), keras.metrics.AUC(name="auc")]
        made.compile(optimizer, "binary_crossentropy", weighted_metrics=metrics)
        return made

    settings = {"epochs": 3, "batch_size": 200, "validation_data": held_out, "verbose": 0}
    (run,) = kc.seeds.train(
        build, given, ledger=tmp_path / "läufe", pipeline="ü", seeds=[3], **settings
    )
    kc.seeds.set_seeds(initialization=3, order=3)
    weight = {"sample_weight": data[2]} if len(data) == 3 else {}
    history = build().fit(x, y, **weight, **settings).history
    for name, values in history.items():
        np.testing.assert_allclose(run["metrics"][name], values, rtol=1e-3, atol=1e-5)
