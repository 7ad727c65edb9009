"""calibrate and calibrate_scores for models of several classes."""

import numpy as np
import pytest
import scipy.special
from sklearn.metrics import roc_auc_score

import keras_calibration as kc
from calibration.test_calibrate import fold_of, weight_of
from class_worlds import base_model, class_rows, log_loss
from keras_calibration._rows.rows import Rows


@pytest.mark.parametrize(
    ("world", "fields", "able"),
    [({"scale": 1.0}, [], {"identity"}), ({"scale": 0.6}, ["site"], {"temperature", "vector"})],
    ids=["nothing", "too sure"],
)
def test_what_can_express_the_truth_gets_the_weight(world, fields, able):
    x, labels = class_rows(**world)
    model = kc.calibrate(base_model(), x, labels, fields=fields, verbose=0)
    report = model.report
    assert weight_of(report, able) > 0.8
    new_x, new_labels = class_rows(20_000, **world, seed=1)
    seen = log_loss(new_labels, model.predict(new_x, verbose=0, batch_size=4096))
    assert seen == pytest.approx(report.after.log_loss, abs=0.03)
    if able != {"identity"}:
        assert seen < log_loss(new_labels, base_model()(new_x)) - 0.05
    assert all(name in str(report) for name in ("identity", "temperature", "vector"))


def test_figures_are_those_of_the_cross_fitted_probabilities():
    x, labels = class_rows(1200, effect=1.0)
    weights = np.random.default_rng(3).uniform(0, 2, len(labels))
    model = kc.calibrate(
        base_model(), x, labels, weights, fields={"site": 3}, methods="vector",
        folds=5, verbose=0,
    )  # fmt: skip
    logits, shares = x["scores"].astype(float), np.eye(3)[labels]
    rows = Rows(logits, shares, weights, {"site": x["site"]})
    fold = fold_of(5, rows)
    calibrated = np.empty(logits.shape)
    for number in range(5):
        layer, others = kc.layers.VectorScaling(3), fold != number
        layer.fit(logits[others], labels[others], sample_weight=weights[others])
        calibrated[~others] = logits[~others] * layer.scales + layer.biases
    p = scipy.special.softmax(calibrated, axis=1)
    after = model.report.after
    chosen = p[np.arange(len(labels)), labels]
    assert after.log_loss == pytest.approx(np.average(-np.log(chosen), weights=weights), abs=1e-4)
    squares = ((p - shares) ** 2).sum(axis=1)
    assert after.brier == pytest.approx(np.average(squares, weights=weights), abs=1e-4)
    aucs = [roc_auc_score(labels == k, p[:, k], sample_weight=weights) for k in range(3)]
    assert after.auc == pytest.approx(np.mean(aucs), abs=1e-4)
    ratios = (weights @ p) / (weights @ shares)
    farthest = ratios[np.argmax(np.abs(np.log(ratios)))]
    assert after.calibration_ratio == pytest.approx(farthest, abs=1e-5)
    cells = [(x["site"] == z) & (fold == k) for z in range(3) for k in range(5)]
    site_errors = [np.abs(weights * cell @ (shares - p)) for cell in cells]
    expected = np.mean(np.sum(site_errors, axis=0) / weights.sum())
    assert after.field_ece["site"] == pytest.approx(expected, abs=1e-5)
    chance = model.report.chance_after["site"]
    assert 0 < chance.field_ece_deviation < chance.field_ece < 0.1


def test_scores_without_a_model():
    x, labels = class_rows(1500, scale=0.4)
    sites = np.array(["news", "games", "mail"])[x["site"]]
    probabilities = scipy.special.softmax(x["scores"], axis=1)
    model = kc.calibrate_scores(
        probabilities, labels, {"site": sites}, from_logits=False, fields=["site"], verbose=0
    )
    assert weight_of(model.report, ["temperature", "vector"]) > 0.8
    received = model.predict({"score": probabilities, "site": sites}, verbose=0)
    assert log_loss(labels, received) < log_loss(labels, probabilities) - 0.1
    np.testing.assert_allclose(received.sum(axis=1), 1, atol=1e-6)


def test_folds_of_one_class_and_methods_of_two_classes_are_refused():
    x, labels = class_rows(300)
    order = np.argsort(labels)
    x = {name: column[order] for name, column in x.items()}
    with pytest.raises(ValueError, match=r"`folds`.*one class"):
        kc.calibrate(base_model(), x, labels[order], time="order", verbose=0)
    with pytest.raises(ValueError, match="'temperature', 'vector'"):
        kc.calibrate(base_model(), x, labels, methods="platt", verbose=0)
