import keras
import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import keras_calibration as kc
from keras_calibration._solvers.row_folds import fold_of_rows
from keras_calibration._solvers.row_order import canonical_order
from keras_calibration.calibration.candidates import vocabularies
from symbols import symbols

NUM_ROWS = 6000
LOGIT, SITE = {}, {"fields": ["site"]}
BOTH = {**SITE, "numeric": ["price"]}


def base_model():
    """A "trained" model whose logit is its input; it has seen no site and no price."""
    inputs = symbols(score=(1,), site="int32", price=(1,))
    return keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))


def make_rows(truth, num_rows=NUM_ROWS, seed=0):
    generator = np.random.default_rng(seed)
    x = {
        "score": generator.normal(-1, 1.2, (num_rows, 1)),
        "site": generator.integers(0, 6, num_rows).astype("int32"),
        "price": generator.normal(size=(num_rows, 1)),
    }
    eta = truth(x["score"][:, 0], x["site"], x["price"][:, 0])
    return x, (generator.random(num_rows) < 1 / (1 + np.exp(-eta))).astype("float32")


def log_loss(labels, probabilities):
    p = np.clip(np.asarray(probabilities, np.float64).reshape(-1), 1e-12, 1 - 1e-12)
    return -np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p))


def weight_of(report, names):
    """Sum of the weights of candidates."""
    return sum(report.weights.get(name, 0.0) for name in names)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("truth", "features", "able"),
    [
        (lambda logit, site, price: logit, LOGIT, {"identity"}),
        (lambda logit, site, price: logit + 0.7, LOGIT, {"bias", "platt", "beta", "ilps"}),
        (lambda logit, site, price: 1.8 * logit - 0.4, LOGIT, {"platt", "beta", "ilps"}),
        (lambda logit, site, price: logit + np.maximum(3 * logit, 0), LOGIT, {"ilps", "beta"}),
        (lambda logit, site, price: logit + 0.2 * (logit + 1) ** 2, LOGIT, {"ilps", "beta"}),
        (
            lambda logit, site, price: logit + np.linspace(-1.5, 1.5, 6)[site],
            SITE,
            {"field_bias", "field_ilps", "trees"},
        ),
        (lambda logit, site, price: logit + 2 * np.abs(price) * (site % 2), BOTH, {"trees"}),
    ],
    ids=["identity", "bias", "platt", "curve", "parabola", "sites", "interaction"],
)
def test_what_can_express_the_truth_gets_the_weight(truth, features, able):
    x, y = make_rows(truth, NUM_ROWS if features is SITE else NUM_ROWS // 2)
    model = kc.calibrate(base_model(), x, y, **features, verbose=0)
    report = model.report
    assert weight_of(report, able) > 0.8
    assert report.after.log_loss <= report.before.log_loss
    # What the folds say is what new rows show, and it is close to the truth.
    new_x, new_y = make_rows(truth, 20_000, seed=1)
    seen = log_loss(new_y, model.predict(new_x, verbose=0, batch_size=4096))
    assert seen == pytest.approx(report.after.log_loss, abs=0.03)
    eta = truth(new_x["score"][:, 0], new_x["site"], new_x["price"][:, 0])
    assert seen < log_loss(new_y, expit(eta)) + (0.02 if features is BOTH else 0.003)
    raw = log_loss(new_y, expit(new_x["score"]))
    assert seen <= raw + (0 if report.chosen == "identity" else -0.003) + 1e-7
    notes = next(k for k, line in enumerate(str(report).splitlines()) if line[:2] == "Cr")
    assert max(map(len, str(report).splitlines()[:notes])) <= 100


def names_of(report):
    return [score.name for score in report.scores]


@pytest.mark.filterwarnings("ignore:No candidate of methods")
def test_methods():
    x, y = make_rows(lambda logit, site, price: logit + 0.5, 1500)
    quick = kc.calibrate(base_model(), x, y, **BOTH, methods="quick", verbose=0).report
    tried = {*names_of(quick), *quick.left_out}
    assert tried >= {"field_bias", "field_ilps"}
    assert not tried & {"trees", "neural"}
    assert quick.num_folds == 3
    thorough = kc.calibrate(base_model(), x, y, methods="thorough", verbose=0).report
    assert thorough.num_folds == 5
    how = {**BOTH, "methods": ["ilps", "platt"], "folds": 2}
    some = kc.calibrate(base_model(), x, y, **how, verbose=0).report
    assert some.num_folds == 2
    assert {*names_of(some)} - {"blend"} == {"identity", "platt", "ilps"}
    assert weight_of(some, ["platt", "ilps"]) > 0.8
    how = {**BOTH, "methods": ["neural"], "folds": 2}
    network = kc.calibrate(base_model(), x, y, **how, verbose=0).head
    assert isinstance(network.field_network, kc.layers.FieldNetwork)
    assert network.num_members == 2
    forced = kc.calibrate(base_model(), x, y, methods=["ilps"], verbose=0).report
    assert forced.chosen == "ilps"
    assert forced.weights == {"ilps": 1.0}
    for wrong in (["quick", "platt"], "blend", [], np.ones(2), [None]):
        with pytest.raises(ValueError, match="`methods`"):
            kc.calibrate(base_model(), x, y, methods=wrong)
    with pytest.raises(ValueError, match="Did you mean 'neural'"):
        kc.calibrate(base_model(), x, y, **BOTH, methods="neurl")
    with pytest.raises(ValueError, match=r"Received: 'quik'\. Did you mean 'quick'\? Available"):
        kc.calibrate(base_model(), x, y, methods="quik")
    with pytest.raises(ValueError, match=r"numeric=\['price'\]. Name each column once"):
        kc.calibrate(base_model(), x, y, fields=["site", "price"], numeric=["price"])


@pytest.mark.filterwarnings("ignore:No candidate of methods")
def test_segments_that_are_still_off_are_named():
    x, y = make_rows(lambda logit, site, price: logit + np.where((site == 2) & (price > 0), 1.5, 0))
    x["site"] = x["site"] % 3
    features = {"fields": ["site"], "numeric": ["price"], "verbose": 0}
    report = kc.calibrate(base_model(), x, y, **features, methods="bias").report
    worst = report.still_off[0]
    assert worst.name.startswith("site = 2, ")
    assert "price" in worst.name
    assert worst.observed_rate > worst.mean_prediction + 0.05
    assert f"Still off beyond chance, most of all: {worst.name}" in str(report)
    assert report.to_dict()["still_off"][0]["name"] == worst.name


def fold_of(num_folds, rows):
    """Folds are drawn for the rows in an order of their own."""
    order = canonical_order(rows)
    fold = np.empty(len(order), int)
    fold[order] = fold_of_rows(num_folds, rows.take(order), 0)
    return fold


def test_a_blend_is_the_weighted_mean_of_its_parts(tmp_path):
    # Too few rows for the curve that they have: neither candidate alone is best.
    x, y = make_rows(lambda z, site, price: z + 0.5 * np.maximum(z, 0) + 0.15 * site, 2000, seed=2)
    model = kc.calibrate(base_model(), x, y, **SITE, methods=["ilps", "field_bias"], verbose=0)
    report = model.report
    assert report.chosen == "blend"
    assert sum(report.weights.values()) == pytest.approx(1)
    parts = [name for name in report.weights if name != "identity"]
    # Its figures are those of the mean of the cross-fitted logits.
    losses = {score.name: score.log_loss for score in report.scores}
    best = min(loss for name, loss in losses.items() if name != "blend")
    assert losses["blend"] < best + 3 / 2000
    assert losses["blend"] < losses["identity"]
    head = model.head
    assert head.head_weights == [report.weights[name] for name in parts]
    features = {"site": x["site"]}
    columns = [as_logits(part, x["score"], features) for part in head.heads]
    expected = np.average(
        [*columns, x["score"][:, 0]],
        axis=0,
        weights=[*head.head_weights, 1 - sum(head.head_weights)],
    )
    probabilities = model.predict(x, batch_size=2000, verbose=0)[:, 0]
    assert head.bias == pytest.approx(report.bias)
    np.testing.assert_allclose(probabilities, expit(expected + head.bias), atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.predict(x, batch_size=2000, verbose=0)[:, 0]
    np.testing.assert_allclose(again, probabilities, atol=1e-6)
    np.testing.assert_array_equal(model.field_ids(x, "site"), x["site"])


def as_logits(head, logits, features):
    arguments = () if head.feature_names == () else (features,)
    return keras.ops.convert_to_numpy(head(logits, *arguments))[:, 0].astype(float)


def test_a_method_that_makes_it_worse_is_told():
    # Within each chronological block the rate differs: a fit on the other blocks is wrong for it.
    generator = np.random.default_rng(0)
    x, _ = make_rows(lambda logit, site, price: logit)
    period = np.arange(NUM_ROWS) * 5 // NUM_ROWS
    eta = x["score"][:, 0] + np.array([1.5, -1.5, 1.5, -1.5, 0.0])[period]
    y = (generator.random(NUM_ROWS) < 1 / (1 + np.exp(-eta))).astype("float32")
    with pytest.warns(UserWarning, match="'platt'.*worse: "):
        kc.calibrate(base_model(), x, y, methods="platt", folds="blocks", verbose=0)
    model = kc.calibrate(base_model(), x, y, folds="blocks", verbose=0)
    assert model.report.chosen == "identity"
    np.testing.assert_allclose(
        model.predict(x, verbose=0, batch_size=NUM_ROWS),
        base_model().predict(x, verbose=0, batch_size=NUM_ROWS),
        atol=1e-6,
    )


def test_what_the_rows_do_not_allow_is_left_out():
    x, _ = make_rows(lambda logit, site, price: logit, num_rows=60)
    y = (x["score"][:, 0] > np.median(x["score"])).astype("float32")  # a threshold separates them
    with pytest.warns(UserWarning, match="'platt': PlattScaling"):
        report = kc.calibrate(base_model(), x, y, fields=["site"], verbose=0).report
    assert set(report.left_out) >= {"platt", "trees"}
    assert "Left out: platt" in str(report)
    assert report.after.log_loss < report.before.log_loss
    with pytest.raises(ValueError, match=r"PlattScaling.*infinite"):
        kc.calibrate(base_model(), x, y, methods="platt", verbose=0)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": "field_bias"}, "`methods`"),
        ({"folds": "weeks"}, "`folds`"),
        ({"folds": np.zeros(NUM_ROWS, int)}, "`folds`"),
        ({"fields": ["sites"]}, "`fields`"),
        ({"fields": None}, "`fields`"),
        ({"numeric": None}, "`numeric`"),
        ({"fields": ["price"]}, "Input .price. must hold ids"),
        ({"numeric": ["prize"]}, "`numeric`"),
        ({"sample_weight": np.zeros(NUM_ROWS)}, "`sample_weight` must be positive"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_done(arguments, message):
    x, y = make_rows(lambda logit, site, price: logit)
    base = base_model()
    base.trainable = True
    with pytest.raises(ValueError, match=message):
        kc.calibrate(base, x, y, verbose=0, **arguments)
    assert base.trainable


@pytest.mark.parametrize("model", [np.zeros(3), LogisticRegression()])
def test_what_is_no_keras_model_is_refused_with_the_way(model):
    with pytest.raises(ValueError, match="calibrate_scores"):
        kc.calibrate(model, np.zeros((3, 1)), np.arange(3) % 2)


def test_ids_with_gaps_are_looked_up():
    generator = np.random.default_rng(0)
    columns = {
        "user": generator.choice(2 * 10**9, 300),
        "signed": generator.choice([-1, 5, 7], 300),
        "city": np.arange(300) % 40,
        "few": np.array([0, 3, 9_999] * 100),
    }
    lookups = vocabularies(list(columns), columns)
    assert (lookups["city"], lookups["few"]) == (40, 10_000)
    for name in ("user", "signed"):
        lookup = lookups[name]
        assert isinstance(lookup, keras.layers.IntegerLookup)
        ids = np.asarray(lookup(columns[name]))
        assert ids.min() == 1
        distinct = np.unique(columns[name])
        np.testing.assert_array_equal(ids, np.searchsorted(distinct, columns[name]) + 1)
        assert int(lookup(np.array([123_456_789]))[0]) == 0  # other
