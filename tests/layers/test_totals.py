"""The total of every head: predictions for the rows of its fit add up to the labels."""

import warnings

import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit, softmax

import every_head
from keras_calibration import layers
from keras_calibration._rows.rows import Rows
from keras_calibration.layers import FitSettings, boosted_trees
from keras_calibration.layers.totals import warn_of_calibrated_scores

NUM_ROWS = 3000
# A scale alone cannot change the total.
HEADS = {name: make for name, (make, _) in every_head.HEADS.items() if "Temperature" not in name}
# The end steps are smoothed, or the bias is that of rows which a fit did not see.
ROUNDING = {"IsotonicRegression": 2e-3, "BoostedTrees": 0.02, "BlendedHead": 0.005}


def make_rows(seed=0, num_rows=NUM_ROWS):
    """Rows whose sites and prices the logit has not seen, with a low rate."""
    rng = np.random.default_rng(seed)
    site, price = rng.integers(0, 5, num_rows), rng.normal(size=num_rows).astype("float32")
    logits = rng.normal(-2.5, 1, num_rows)
    labels = rng.random(num_rows) < expit(0.8 * logits + 0.5 * site - 1 + 0.4 * price)
    weights = rng.integers(1, 4, num_rows).astype(float)
    return logits, labels.astype(float), {"site": site, "price": price}, weights


@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")  # counts repeat rows
@pytest.mark.parametrize("weights_are", ["importance", "counts"])
@pytest.mark.parametrize("name", HEADS)
def test_the_predicted_total_is_the_observed_one(name, weights_are):
    logits, labels, features, weights = make_rows()
    weights = weights if weights_are == "counts" else 0.3 * weights
    head = HEADS[name]()
    if every_head.has_classes(name):
        logits = np.stack([logits, features["price"], np.zeros(NUM_ROWS)], axis=1)
        labels = labels + (features["site"] == 2)
    settings = {"settings": FitSettings(max_epochs=3)} if "Neural" in name else {}
    names = head.feature_names
    columns = {name: features[name] for name in names}
    if name == "NeuralCalibration, alone":
        settings = {}
    head.fit(logits, labels, columns or None, weights, weights_are=weights_are, **settings)
    calibrated = np.asarray(head(logits, columns) if columns else head(logits)).astype(float)
    if every_head.has_classes(name):
        predicted = weights @ softmax(calibrated, axis=1)
        observed = [weights @ (labels == number) for number in range(3)]
        np.testing.assert_allclose(predicted, observed, rtol=5e-3)  # a weak prior
        return
    total = weights @ expit(calibrated.reshape(-1))
    assert total / (weights @ labels) == pytest.approx(1, abs=ROUNDING.get(name, 2e-5))


def parts():
    return [layers.FieldBias({"site": 5}), layers.PlattScaling()]


def test_the_bias_of_a_blend_is_that_of_its_cross_fitted_mean():
    logits, labels, features, _ = make_rows()
    fold = np.arange(NUM_ROWS) % 3
    head = layers.BlendedHead(parts(), [0.6, 0.3])
    columns = {"site": features["site"]}
    summary = head.fit(logits, labels, columns, settings=FitSettings(folds=fold))
    mean = 0.1 * logits
    for number in range(3):
        fitted, scored = fold != number, fold == number
        for part, share in zip(parts(), [0.6, 0.3], strict=True):
            names = part.feature_names
            part.fit(logits[fitted], labels[fitted], {n: columns[n][fitted] for n in names})
            arguments = [{n: columns[n][scored] for n in names}] if names else []
            outputs = np.asarray(part(logits[scored], *arguments)).reshape(-1)
            mean[scored] += share * outputs

    def difference(bias):
        return expit(mean + bias).sum() - labels.sum()

    bias = optimize.brentq(difference, -5, 5, xtol=1e-12)
    assert head.bias == pytest.approx([bias], abs=5e-4)
    assert head.bias > 0.02  # the mean of the logits has a lower total than its parts
    np.testing.assert_allclose(summary.cross_fitted_logits, mean + bias, atol=0.05)
    assert expit(summary.cross_fitted_logits).sum() == pytest.approx(labels.sum(), rel=1e-9)


def test_the_bias_of_a_blend_of_classes_gives_the_totals_of_all():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(NUM_ROWS, 3)) - [0, 2, 3]
    labels = np.array([rng.choice(3, p=p) for p in softmax(0.5 * logits + [0, 0.5, 0], axis=1)])
    head = layers.BlendedHead([layers.VectorScaling(3), layers.TemperatureScaling()])
    summary = head.fit(logits, labels)
    predicted = softmax(summary.cross_fitted_logits, axis=1).sum(axis=0)
    np.testing.assert_allclose(predicted, np.bincount(labels), rtol=1e-9)
    assert head.bias.shape == (3,)
    assert head.bias.sum() == pytest.approx(0, abs=1e-5)


def test_a_blend_with_a_level_has_the_total_of_its_parts():
    logits, labels, _, _ = make_rows()
    head = layers.BlendedHead([layers.FieldBias({}, follows_time=True), layers.PlattScaling()])
    head.fit(logits, labels, time=np.arange(NUM_ROWS))
    one, other = (np.asarray(part(logits)).reshape(-1).astype(float) for part in head.heads)
    total = expit(np.asarray(head(logits)).astype(float)).sum()
    assert total == pytest.approx((expit(one).sum() + expit(other).sum()) / 2, rel=1e-5)


def test_a_network_on_any_curve_has_the_observed_total():
    logits, labels, features, _ = make_rows()
    columns = {"site": features["site"]}
    for calibrator in (layers.PlattScaling(), None):
        network = layers.FieldNetwork({"site": 5}, seed=0)
        head = layers.NeuralCalibration(calibrator, network)
        settings = FitSettings(folds=2, max_epochs=3, learning_rate=0.05)
        summary = head.fit(logits, labels, columns, settings=settings)
        assert summary.network_kept
        total = expit(np.asarray(head(logits, columns)).astype(float)).sum()
        assert total == pytest.approx(labels.sum(), rel=1e-5)
        assert expit(summary.cross_fitted_logits).sum() == pytest.approx(labels.sum(), rel=1e-9)


def test_trees_serve_the_bias_of_their_fit(monkeypatch):
    """The layer is h, plus the sums of LightGBM's trees, plus the bias."""
    logits, labels, features, _ = make_rows()
    fits = []
    boost = boosted_trees.boost
    monkeypatch.setattr(
        boosted_trees, "boost", lambda *args, **kw: fits.append(boost(*args, **kw)) or fits[-1]
    )
    head = layers.BoostedTrees({"site": 5}, ["price"], layers.PlattScaling(), num_rounds=32)
    head.fit(logits, labels, features)
    (fit,) = fits
    assert fit.num_rounds
    assert abs(fit.bias) > 1e-4
    inner = np.asarray(head.head(logits[:, None]))
    columns = [logits[:, None].astype("float32"), inner]
    seen = head._stack_tree_columns(columns, features, np.asarray(head._categories))
    trees = fit.model.predict(np.asarray(seen), raw_score=True)
    expected = inner[:, 0] + trees + fit.bias
    np.testing.assert_allclose(np.asarray(head(logits, features))[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("moved", "is_told"), [(None, True), (-1.0, True), (-0.4, True), (-0.1, False), (0.5, False)]
)
def test_scores_that_moved_with_the_correction_seem_calibrated(moved, is_told):
    """A correction of -1 for scores that are right, which since the last fit have moved or not."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1, 4000)
    labels = (generator.random(4000) < expit(logits)).astype(float)
    before = moved and {"mean": logits.mean() - moved, "num_rows": 100}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_calibrated_scores(Rows(logits, labels, None), logits - 1, before)
    assert ["calibrated already" in str(warning.message) for warning in caught] == [True] * is_told
