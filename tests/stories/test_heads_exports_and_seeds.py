"""Stories of hostile users: calibrators, scikit-learn, exports, several outputs, seeds.

Each was written from the documentation alone, and is held against NumPy, SciPy or scikit-learn.
What fails is marked with what was found.
"""

import copy
import json
import os
import pickle

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

    def x(self, price="price", site="site"):
        """Inputs of the base model."""
        return {price: self.price[:, None], site: self.site.astype("int32")}

    def head_probabilities(self, labels):
        """What the head gives, fitted by itself to the logits."""
        head = _head()
        head.fit(self.logits, labels, {"site": self.site})
        return sigmoid(head(self.logits, {"site": self.site}))


def _base(price="price", site="site"):
    inputs = {
        price: keras.Input((1,), name=price),
        site: keras.Input((), dtype="int32", name=site),
    }
    return keras.Model(inputs, _dense(1.2, -0.3, "sigmoid")(inputs[price]))


def _dense(scale, bias, activation, name="probability_of_all"):
    constant = keras.initializers.Constant
    initializers = {"kernel_initializer": constant(scale), "bias_initializer": constant(bias)}
    return keras.layers.Dense(1, activation, name=name, **initializers)


def _head(site="site"):
    return kc.layers.FieldBias({site: 4}, kc.layers.PlattScaling())


def _serve(path, x, signature="serving_default"):
    import tensorflow as tf

    served = tf.saved_model.load(str(path)).signatures[signature]
    outputs = served(**{name: tf.constant(column) for name, column in x.items()})
    return {name: values.numpy() for name, values in outputs.items()}


@pytest.fixture(scope="module")
def sites():
    return Sites()


@pytest.fixture(scope="module")
def model(sites):
    made = kc.models.CalibratedModel(_base(), _head())
    kc.fit_head(made, sites.x(), sites.y, verbose=0)
    return made


# 1. A calibrator used by itself: weights, halves, forgetting, pickles.


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


@pytest.mark.parametrize("name", ["PlattScaling", "BetaCalibration", "ILPS"])
def test_updates_of_copies(name, sites):
    make = getattr(kc.layers, name)
    first, second = slice(None, 800), slice(800, None)
    expected, layer = make(), make()
    halves = np.where(np.arange(len(sites.y)) < 800, 0.5, 1.0)
    expected.fit(sites.logits, sites.y, sample_weight=halves)
    layer.fit(sites.logits[first], sites.y[first])
    for copied in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        copied.update(sites.logits[second], sites.y[second], forget=0.5)
        # The priors count for half as much beside rows of weights ½ and 1 as beside all rows, and
        # knots lie on the bins of the first fit.
        accuracy = {"PlattScaling": 1e-4, "BetaCalibration": 5e-3, "ILPS": 0.1}[name]
        np.testing.assert_allclose(copied(GRID), expected(GRID), atol=accuracy)
    alone = make()
    alone.fit(sites.logits[first], sites.y[first])
    np.testing.assert_allclose(layer(GRID), alone(GRID), atol=1e-6)


def test_weights_are_numbers_of_rows(sites):
    repeated = np.repeat(np.arange(len(sites.y)), sites.weights)
    for make in (kc.layers.ILPS, kc.layers.BetaCalibration, kc.layers.TemperatureScaling):
        weighted, long = make(), make()
        weighted.fit(sites.logits, sites.y, sample_weight=sites.weights, weights_are="counts")
        long.fit(sites.logits[repeated], sites.y[repeated])
        np.testing.assert_allclose(weighted(GRID), long(GRID), atol=1e-4)


# 2. A blend of two heads, and ids that no fit has seen.


def test_blend_by_hand(sites):
    heads = [kc.layers.FieldBias({"site": 4}), kc.layers.FieldILPS({"site": 4})]
    blend = kc.layers.BlendedHead(heads)
    blend.fit(sites.logits, sites.y, {"site": sites.site})
    alone = [kc.layers.FieldBias({"site": 4}), kc.layers.FieldILPS({"site": 4})]
    for head in alone:
        head.fit(sites.logits, sites.y, {"site": sites.site})
    for ids in ([0, 1, 2, 3], [-1, 4, 2**31 - 1, 2**40], [0.0, 1.0, np.nan, 3.0]):
        features = {"site": np.array(ids)}
        mean = np.mean([head(GRID[:4], features) for head in alone], axis=0)
        np.testing.assert_allclose(blend(GRID[:4], features), mean, atol=1e-5)
    unseen = np.asarray(alone[0](GRID[:4], {"site": np.array([-1, 4, 2**31 - 1, 2**40])}))
    line = np.polyfit(GRID[:4], unseen[:, 0], 1)  # the offset of an unseen value is 0
    np.testing.assert_allclose(np.polyval(line, GRID[:4]), unseen[:, 0], atol=1e-5)


# 3. The folds of a report, by hand.


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


# 4. Scores of another library, with features of every kind.


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["far from 0", "strings", "category", "bytes"])
def test_scores_with_features_of_many_kinds(kind, sites):
    column = {
        "far from 0": sites.site + 10**12,
        "strings": np.array([f"é {site}" for site in sites.site], object),
        "category": pd.Categorical(sites.site.astype(str)),
        "bytes": np.array([b"s%d" % site for site in sites.site]),
    }[kind]
    frame = pd.DataFrame({"site": column}, index=sites.order)
    scores = pd.Series(sites.logits, index=sites.order)
    made = kc.calibrate_scores(
        scores,
        sites.y,
        frame,
        from_logits=True,
        fields=["site"],
        methods="field_bias",
        verbose=0,
    )
    p = made.predict({"score": sites.logits, "site": column}, verbose=0)[:, 0]
    head = kc.layers.FieldBias({"site": 4}, kc.layers.ILPS(smoothness="auto"))
    head.fit(sites.logits, sites.y, {"site": sites.site})
    expected = sigmoid(head(sites.logits, {"site": sites.site}))[:, 0]
    np.testing.assert_allclose(p, expected, atol=1e-4)
    two = made.predict({"score": sites.logits[:2], "site": column[:2]}, verbose=0)[:, 0]
    np.testing.assert_allclose(two, expected[:2], atol=1e-4)


def test_ids_that_do_not_fit_into_64_bits_with_a_sign(sites):
    frame = pd.DataFrame({"site": sites.site.astype("uint64") + 2**63}, index=sites.order)
    with pytest.raises(ValueError, match=r"'site' must hold whole numbers below 2⁶³.*to strings"):
        kc.calibrate_scores(
            sites.logits, sites.y, frame, from_logits=True, fields=["site"], verbose=0
        )


# 5. A classifier of scikit-learn, with labels of every kind.


def _classifier_by_hand(x, y, weights=None):
    """Naive Bayes, with Platt scaling of its cross-validated scores."""
    from sklearn.model_selection import StratifiedKFold
    from sklearn.naive_bayes import GaussianNB

    def scores(fit_rows, rows):
        chosen = None if weights is None else weights[fit_rows]
        p = GaussianNB().fit(x[fit_rows], y[fit_rows], chosen).predict_proba(x[rows])
        return np.log(p[:, 1]) - np.log(p[:, 0])

    held_out = np.zeros(len(y))
    for others, rows in StratifiedKFold(5).split(x, y):
        held_out[rows] = scores(others, rows)
    (scale, bias), _ = references.platt(held_out, y, weights)
    every = np.arange(len(y))
    return sigmoid(scale * scores(every, every) + bias)


class Table:
    """Rows for a classifier, with a column twice, so that naive Bayes is too sure."""

    def __init__(self):
        rng = np.random.default_rng(6)
        self.x = rng.normal(size=(600, 4))
        self.x[:, 2] = self.x[:, 1]
        self.x[:, 3] = rng.integers(0, 3, 600)
        logits = self.x[:, 0] + self.x[:, 1] + self.x[:, 3] - 1
        self.y = (rng.random(600) < sigmoid(logits)).astype(int)
        self.weights = rng.integers(0, 3, 600).astype("float64")


@pytest.fixture(scope="module")
def table():
    return Table()


def _calibrator(**arguments):
    from sklearn.naive_bayes import GaussianNB

    from keras_calibration.sklearn import NeuralCalibrator

    return NeuralCalibrator(GaussianNB(), **{"methods": "platt", **arguments})


@pytest.mark.parametrize("kind", ["strings", "±1", "boolean", "category", "dates"])
def test_classifier_with_labels_of_many_kinds(kind, table):
    labels = {
        "strings": np.array(["nein", "ja ✓"], object)[table.y],
        "±1": 2 * table.y - 1,
        "boolean": pd.Series(table.y.astype(bool), dtype="boolean"),
        "category": pd.Categorical(np.array(list("bc"))[table.y], categories=list("abc")),
        "dates": np.datetime64("2026-01-01") + table.y,
    }[kind]
    made = _calibrator().fit(table.x, labels)
    second = 1 - table.y if kind == "strings" else table.y  # "nein" sorts after "ja ✓"
    p = made.predict_proba(table.x)
    assert len(made.classes_) == 2
    np.testing.assert_allclose(p[:, 1], _classifier_by_hand(table.x, second), atol=2e-3)
    assert set(made.predict(table.x[:50])) <= set(np.asarray(labels))


def test_classifier_with_weights(table):
    made = _calibrator(weights_are="counts")
    made.fit(table.x, table.y, sample_weight=pd.Series(table.weights))
    expected = _classifier_by_hand(table.x, table.y, table.weights)
    np.testing.assert_allclose(made.predict_proba(table.x)[:, 1], expected, atol=2e-3)
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_allclose(again.predict_proba(table.x), made.predict_proba(table.x))


def test_classifier_with_lists(table):
    made = _calibrator(fields=[3], methods="field_bias").fit(table.x, table.y)
    found = made.predict_proba(table.x[:2].tolist())
    np.testing.assert_allclose(found, made.predict_proba(table.x[:2]), atol=1e-6)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_classifier_of_a_frame_with_an_array(table):
    frame = pd.DataFrame(table.x, columns=[*"abc", "site"]).astype({"site": int})
    made = _calibrator(fields=["site"], methods="field_bias").fit(frame, table.y)
    with pytest.raises(ValueError, match="site"):
        made.predict_proba(table.x[:2])


# 6. Sampling correction with a rate of each row.


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
    path = kc.export_savedmodel(made, tmp_path / "1", verify="same_process")
    np.testing.assert_allclose(_serve(path, x)["probability"][:, 0], expected, rtol=1e-5)
    x["kept"][:4] = [0, -1, 1.5, np.nan]
    found = made.predict(x, verbose=0)[:, 0]
    assert np.isnan(found).tolist() == [True] * 4 + [False] * 46


@pytest.mark.parametrize("rate", [np.float32(0.5), np.int64(1)], ids=["float32", "int64"])
def test_rates_of_numpy(rate):
    layer = kc.layers.SamplingCorrection(rate)
    np.testing.assert_allclose(layer(np.zeros(1)), [np.log(float(rate))])


# 7. Exports in odd folders, from another working directory, and refreshed.


def test_export_and_refresh_in_odd_folders(model, sites, tmp_path, monkeypatch):
    folder = "ü ñ $HOME a;b {v} %d"
    monkeypatch.chdir(tmp_path)
    options = {"verify": "same_process", "interval": 0.9}
    path = kc.export_savedmodel(model, os.path.join("x", folder), version="next", **options)
    os.makedirs("elsewhere")
    path = path.absolute()
    monkeypatch.chdir("elsewhere")
    served = _serve(path, sites.x())
    np.testing.assert_allclose(served["probability"], model.predict(sites.x(), verbose=0), 1e-4)
    lower, upper = kc.interval(model, sites.x(), level=0.9)
    np.testing.assert_allclose(served["probability_lower"], lower, 1e-4)
    np.testing.assert_allclose(served["probability_upper"], upper, 1e-4)
    np.testing.assert_allclose(served["logit"][:, 0], sites.logits, atol=1e-5)

    refreshed = kc.refresh_savedmodel(
        path.parent,
        pd.Series(served["logit"][:, 0], index=sites.order),
        pd.Series(sites.later, dtype="Int8"),
        {"site": pd.Categorical(sites.site), "unused": sites.price},
        from_logits=True,
        verify="same_process",
    )
    again = _serve(refreshed, sites.x())
    np.testing.assert_allclose(again["probability"], sites.head_probabilities(sites.later), 1e-3)
    head = _head()
    head.fit(sites.logits, sites.later, {"site": sites.site})
    lower, _ = head.interval(sites.logits, {"site": sites.site}, level=0.9)
    np.testing.assert_allclose(again["probability_lower"], lower, 1e-3)


@pytest.mark.parametrize("names", [("price €", "class"), ("a\nb", "c"), ("training", "logits")])
def test_export_of_odd_names(names, sites, tmp_path):
    x = sites.x(*names)
    made = kc.models.CalibratedModel(_base(*names), _head(names[1]))
    kc.fit_head(made, x, sites.y, verbose=0)
    path = kc.export_savedmodel(made, tmp_path / "1", verify="same_process")
    served = _serve(path, {kc.signature_input(name): column for name, column in x.items()})
    np.testing.assert_allclose(served["probability"], sites.head_probabilities(sites.y), 1e-3)


def test_export_of_names_that_differ_in_case(tmp_path):
    made = kc.models.CalibratedModel(_base("Price", "price"), kc.layers.PlattScaling())
    made.head.fit(GRID, sigmoid(GRID))
    with pytest.raises(ValueError, match=r"must have different names.*Rename"):
        kc.export_savedmodel(made, tmp_path / "1", verify="same_process")


# 8. The provenance of weights that another fit has made.


@pytest.mark.parametrize("way", ["set_weights", "head.fit"])
def test_provenance_of_other_weights(way, sites, tmp_path):
    made = kc.models.CalibratedModel(_base(), _head())
    kc.fit_head(made, sites.x(), sites.y, verbose=0)
    good = made.get_weights()
    kc.fit_head(made, sites.x(), sites.later, verbose=0)
    stale = made.head.fit_summary.log_loss_after
    if way == "set_weights":
        made.set_weights(good)
    else:
        made.head.fit(sites.logits, sites.y, {"site": sites.site})
    path = kc.export_savedmodel(made, tmp_path / "1", verify="same_process")
    text = (path / "assets.extra" / "provenance.json").read_text(encoding="utf-8")
    found = ((json.loads(text)["fit"] or {}).get("summary") or {}).get("log_loss_after")
    assert found is None or abs(found - stale) > 1e-3


# 9. Copies of a calibrated model.


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("way", ["pickle", "deepcopy", "file", "configuration"])
def test_copies(way, model, sites, tmp_path):
    if way == "pickle":
        copied = pickle.loads(pickle.dumps(model))
    elif way == "deepcopy":
        copied = copy.deepcopy(model)
    elif way == "file":
        model.save(tmp_path / "módèl.keras")
        copied = keras.saving.load_model(tmp_path / "módèl.keras")
    else:
        copied = kc.models.CalibratedModel.from_config(model.get_config())
        copied.set_weights(model.get_weights())
    before = model.predict(sites.x(), verbose=0)
    np.testing.assert_allclose(copied.predict(sites.x(), verbose=0), before, atol=1e-6)
    lower = kc.interval(model, sites.x())
    np.testing.assert_allclose(kc.interval(copied, sites.x()), lower, atol=1e-6)
    kc.fit_head(copied, sites.x(), sites.later, verbose=0)
    expected = sites.head_probabilities(sites.later)
    np.testing.assert_allclose(copied.predict(sites.x(), verbose=0), expected, atol=1e-4)
    np.testing.assert_allclose(model.predict(sites.x(), verbose=0), before, atol=1e-6)


# 10. A model of three outputs, of which two are calibrated.


def test_two_calibrated_outputs(sites, tmp_path):
    import tensorflow as tf

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
    path = kc.export_savedmodel(buy, tmp_path / "1", verify="same_process")
    served = _serve(path, {"price": x})
    np.testing.assert_allclose(served["probability"], found["buy"], atol=1e-5)
    np.testing.assert_allclose(served["click"], found["click"], atol=1e-5)
    file = kc.export_litert(buy, tmp_path / "b.tflite", sample=x[:8])
    with pytest.warns(UserWarning, match="deprecated"):
        interpreter = tf.lite.Interpreter(str(file))
    lite = interpreter.get_signature_runner()(price=x[:5])
    np.testing.assert_allclose(lite["probability"], found["buy"][:5], atol=1e-5)
    np.testing.assert_allclose(lite["click"], found["click"][:5], atol=1e-5)


# 11. Four classes, with labels of every kind.


class Softmax:
    """Rows of a softmax of four classes that is twice too sure."""

    def __init__(self):
        rng = np.random.default_rng(4)
        self.x = rng.normal(size=(1500, 2)).astype("float32")
        self.kernel = rng.normal(size=(2, 4))
        self.logits = self.x.astype("float64") @ self.kernel
        truth = np.exp(self.logits / 2)
        truth /= truth.sum(axis=1, keepdims=True)
        self.y = (truth.cumsum(axis=1) > rng.random(1500)[:, None]).argmax(axis=1)

    def model(self):
        """The softmax with its temperature."""
        base = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, "softmax")])
        base.layers[-1].set_weights([self.kernel, np.zeros(4)])
        return kc.models.CalibratedModel(base, kc.layers.TemperatureScaling())

    def expected(self):
        """The probabilities at the best temperature."""
        from scipy.optimize import minimize_scalar
        from scipy.special import log_softmax

        def loss(inverse):
            return -log_softmax(inverse * self.logits, axis=1)[np.arange(1500), self.y].mean()

        best = minimize_scalar(loss, bounds=(0.01, 5), method="bounded").x
        return np.exp(log_softmax(best * self.logits, axis=1))


@pytest.mark.parametrize("kind", ["uint8", "float", "Int64", "category", "one-hot booleans"])
def test_class_labels_of_many_kinds(kind):
    world = Softmax()
    labels = {
        "uint8": world.y.astype("uint8"),
        "float": world.y[:, None].astype("float64"),
        "Int64": pd.Series(world.y, dtype="Int64", index=np.arange(1500)[::-1]),
        "category": pd.Categorical(world.y),
        "one-hot booleans": np.eye(4, dtype=bool)[world.y],
    }[kind]
    made = world.model()
    kc.fit_head(made, world.x, labels, verbose=0)
    np.testing.assert_allclose(made.predict(world.x, verbose=0), world.expected(), atol=1e-3)


def test_class_labels_that_are_names():
    world = Softmax()
    with pytest.raises(ValueError, match=r"[Ll]abels.*must.*Received"):
        kc.fit_head(world.model(), world.x, np.array(list("abcd"))[world.y], verbose=0)


# 12. `seeds.train` against `fit`, where the order of the rows does not matter.


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


def test_averages_of_evaluations_by_hand(sites):
    x, held_out = sites.price[:200, None], sites.price[200:500, None]
    y, held_out_y = sites.y[:200], sites.y[200:500]
    kc.seeds.set_seeds(initialization=0, order=0)
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
    made.compile(keras.optimizers.SGD(1.0), "binary_crossentropy")
    logits = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logits.append(
            np.log(p := made.predict(held_out, verbose=0)[:, 0].astype("float64")) - np.log1p(-p)
        )
    )
    average = kc.callbacks.LogitAverage((held_out, held_out_y.astype(bool)), num_evaluations=2)
    history = made.fit(x, y, epochs=3, callbacks=[record, average], verbose=0).history
    for epoch in range(3):
        last = logits[max(0, epoch - 1) : epoch + 1]
        loss_of_mean = references.log_loss(held_out_y, sigmoid(np.mean(last, axis=0)))
        mean_of = np.mean([references.log_loss(held_out_y, sigmoid(each)) for each in last])
        assert history["val_averaged_log_loss"][epoch] == pytest.approx(loss_of_mean, rel=1e-5)
        assert history["val_mean_log_loss"][epoch] == pytest.approx(mean_of, rel=1e-5)


@pytest.mark.slow
def test_strings_on_jax():
    import subprocess
    import sys

    pytest.importorskip("jax")
    program = """
import numpy as np, keras_calibration as kc
site = np.array(["a", "b"])[np.arange(400) % 2]
labels = np.arange(400) // 2 % 10 < np.where(site == "a", 2, 6)
options = dict(fields=["site"], methods="field_bias", verbose=0)
try:
    model = kc.calibrate_scores(np.full(400, 0.5), labels, {"site": site}, **options)
    found = model.predict({"score": np.full(2, 0.5), "site": np.array(["a", "b"])}, verbose=0)
    print(found.ravel().astype("float64").round(1).tolist())
except ValueError as error:
    print("TensorFlow" in str(error))
"""
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-300:]
    assert result.stdout.split("\n")[-2] in ("True", "[0.2, 0.6]")
