"""The cross-fitted predictions of a report: its lines from them, in NumPy, and what they saw."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import keras_calibration as kc
from keras_calibration._solvers import row_order
from row_references import auc, fitted_line, losses_of, mean_and_error

RNG = np.random.default_rng(0)
NUM = 900
LOGITS = RNG.normal(-1.0, 1.2, NUM).round(1)  # coarse: no copies
SITES = RNG.integers(0, 4, NUM)
LABELS = (RNG.random(NUM) < special.expit(0.7 * LOGITS + 0.5 + 0.3 * SITES)).astype(float)
FOLDS = RNG.integers(0, 3, NUM)
METHODS = ["bias", "platt", "field_bias"]
HOW = {
    "plain": {},
    "importances": {"sample_weight": RNG.uniform(0.5, 3.0, NUM) * 7},
    "counts": {"sample_weight": RNG.integers(0, 4, NUM), "weights_are": "counts"},
    "zeros": {"sample_weight": np.where(RNG.random(NUM) < 0.3, 0.0, RNG.uniform(1, 2, NUM))},
    "groups": {"groups": np.arange(NUM) // 3},
    "time": {"time": RNG.permutation(NUM).astype(float)},
    "soft": {},
}


def report_of(kind="plain", labels=LABELS, **options):
    options = {"fields": ["site"], "methods": METHODS, "verbose": 0, **HOW[kind], **options}
    if kind == "soft":
        labels = 0.1 + 0.8 * labels
    columns = {"site": SITES} if options["fields"] else None
    return kc.calibrate_scores(LOGITS, labels, columns, from_logits=True, **options).report


def field_ece(y, p, w, site, fold):
    cells = site * 100 + fold
    return sum(abs(np.sum((w * (y - p))[cells == cell])) for cell in np.unique(cells)) / w.sum()


@pytest.mark.parametrize("kind", HOW)
def test_a_line_of_the_report_from_the_rows(kind):
    report = report_of(kind)
    crossed, text = report.cross_fitted, str(report)
    y, site = LABELS[crossed.rows], SITES[crossed.rows]
    y = 0.1 + 0.8 * y if kind == "soft" else y
    np.testing.assert_array_equal(crossed.labels, y)
    w = crossed.weights
    clusters = [crossed.folds] if kind == "time" else []
    clusters += [HOW[kind]["groups"][crossed.rows]] if kind == "groups" else []
    identity = losses_of(y, LOGITS[crossed.rows])
    assert {*crossed.logits} == {score.name for score in report.scores} >= {"identity", *METHODS}
    for score in report.scores:
        p = crossed.probabilities(score.name)
        losses = -(y * np.log(p) + (1 - y) * np.log(1 - p))
        loss, brier = w @ losses / w.sum(), w @ (y - p) ** 2 / w.sum()
        change, error = mean_and_error(losses - identity, w, *clusters)
        ratio, ece = w @ p / (w @ y), field_ece(y, p, w, site, crossed.folds)
        assert (score.log_loss, score.brier) == pytest.approx((loss, brier), rel=1e-9)
        assert score.log_loss_change == pytest.approx(change, rel=1e-9, abs=1e-14)
        assert score.log_loss_change_error == pytest.approx(error, rel=1e-9, abs=1e-14)
        assert score.calibration_ratio == pytest.approx(ratio, rel=1e-9)
        assert score.field_ece["site"] == pytest.approx(ece, rel=1e-5)  # summed in float32
        area = auc(y, p, w) if kind != "soft" else score.auc
        assert score.auc == pytest.approx(area, rel=1e-9)
        # The printed line is these numbers.
        (line,) = (row for row in text.splitlines() if row[2:].startswith(f"{score.name} "))
        cells = line[2:].split()
        assert cells[1] == f"{loss:.5f}"
        assert cells[5:9] == [f"{brier:.5f}", f"{area:.4f}", f"{ece:.4f}", f"{ratio:.3f}"]


def test_rows_are_those_that_were_passed():
    crossed = report_of().cross_fitted
    np.testing.assert_array_equal(crossed.rows, np.arange(NUM))
    np.testing.assert_array_equal(crossed.logits["identity"], LOGITS)
    counts = HOW["counts"]["sample_weight"]
    crossed = report_of("counts").cross_fitted
    np.testing.assert_array_equal(crossed.rows, np.repeat(np.arange(NUM), counts))
    assert (crossed.weights == 1).all()
    weights = HOW["zeros"]["sample_weight"]
    crossed = report_of("zeros").cross_fitted
    np.testing.assert_array_equal(crossed.rows, np.flatnonzero(weights))
    share = crossed.weights / weights[crossed.rows]
    np.testing.assert_allclose(share, share[0], rtol=1e-12)
    # The first of eight blocks of time has no fit before it; later ones have larger fits.
    time = HOW["time"]["time"]
    crossed = report_of("time").cross_fitted
    blocks = 8 * time[crossed.rows] // NUM
    np.testing.assert_array_equal(crossed.rows, np.flatnonzero(time >= np.ceil(NUM / 8)))
    np.testing.assert_array_equal(crossed.folds, blocks - 1)
    np.testing.assert_allclose(crossed.weights, blocks / 8, atol=0.01)


def test_counts_of_equal_rows_that_are_added_up(monkeypatch):
    monkeypatch.setattr(row_order, "_MAX_ROWS", 500)  # a million, outside of tests
    report = report_of("counts")
    crossed = report.cross_fitted
    assert len(crossed.rows) < 900
    assert crossed.weights.sum() == HOW["counts"]["sample_weight"].sum()
    np.testing.assert_array_equal(crossed.labels, LABELS[crossed.rows])
    np.testing.assert_array_equal(crossed.logits["identity"], LOGITS[crossed.rows])
    losses = losses_of(crossed.labels, crossed.logits[report.chosen])
    loss = crossed.weights @ losses / crossed.weights.sum()
    assert report.after.log_loss == pytest.approx(loss, rel=1e-12)


def test_a_row_of_weight_0_may_hold_anything():
    weights = np.where(np.arange(NUM) % 5 == 0, 0.0, 1.0)
    bad = np.where(weights == 0, np.nan, LABELS)
    crossed = report_of(labels=bad, sample_weight=weights).cross_fitted
    np.testing.assert_array_equal(crossed.rows, np.flatnonzero(weights))
    np.testing.assert_array_equal(crossed.labels, LABELS[weights > 0])


def test_each_row_is_predicted_without_its_fold():
    crossed = report_of(methods=["platt", "bias"], fields=(), folds=FOLDS).cross_fitted
    np.testing.assert_array_equal(crossed.folds, FOLDS)
    for fold in range(3):
        fits, new = fold != FOLDS, fold == FOLDS
        line = fitted_line(LOGITS[fits], LABELS[fits], np.ones(fits.sum()), None)
        expected = special.expit(line(LOGITS[new], None))
        np.testing.assert_allclose(crossed.probabilities("platt")[new], expected, atol=2e-5)
    # Other labels of a fold change no prediction of it, with any candidate.
    turned = np.where((FOLDS == 1) & (np.arange(NUM) % 4 == 0), 1 - LABELS, LABELS)
    other = report_of(labels=turned, methods=["platt", "bias"], fields=(), folds=FOLDS)
    for name in ("platt", "bias"):
        same = other.cross_fitted.logits[name] == crossed.logits[name]
        np.testing.assert_array_equal(same, FOLDS == 1)


def test_the_chosen_line_is_what_the_model_does():
    report = report_of(folds=FOLDS)
    assert report.chosen == "blend"
    crossed = report.cross_fitted
    assert {*report.weights} <= {*crossed.logits}
    # Within a fold, a blend is one weighted mean and one bias: the rest of a regression is 0.
    for fold in range(3):
        rows = crossed.folds == fold
        parts = [crossed.logits[name][rows] for name in ("identity", *METHODS)]
        columns = np.stack([*parts, np.ones(rows.sum())], axis=1)
        blend = crossed.logits["blend"][rows]
        found = np.linalg.lstsq(columns, blend, rcond=None)[0]
        np.testing.assert_allclose(columns @ found, blend, atol=1e-10)


def test_classes():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(600, 4))
    labels = np.array([rng.choice(4, p=part) for part in special.softmax(0.5 * logits, axis=1)])
    weights = rng.uniform(1, 3, 600)
    report = kc.calibrate_scores(
        logits, labels, sample_weight=weights, from_logits=True, verbose=0
    ).report
    crossed = report.cross_fitted
    np.testing.assert_array_equal(crossed.rows, np.arange(600))
    one_hot = np.eye(4)[labels]
    np.testing.assert_array_equal(crossed.labels, one_hot)
    for score in report.scores:
        p = crossed.probabilities(score.name)
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
        loss = weights @ -np.log(p[np.arange(600), labels]) / weights.sum()
        brier = weights @ np.sum((p - one_hot) ** 2, axis=1) / weights.sum()
        assert (score.log_loss, score.brier) == pytest.approx((loss, brier), rel=1e-9)
        assert f"{loss:.5f}" in str(report)


def test_models_and_data_sets():
    inputs = {name: keras.Input((1,), name=name) for name in ("score", "site")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))
    x = {"score": LOGITS[:, None].astype("float32"), "site": SITES[:, None].astype("float32")}
    options = {"methods": ["platt", "bias"], "verbose": 0}
    report = kc.calibrate(base, x, LABELS, **options).report
    np.testing.assert_array_equal(report.cross_fitted.labels, LABELS)
    p = report.cross_fitted.probabilities(report.chosen)
    loss = -np.mean(np.log(np.where(LABELS == 1, p, 1 - p)))
    assert report.after.log_loss == pytest.approx(loss, rel=1e-9)
    batches = tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(64)
    again = kc.calibrate(base, batches, **options).report.cross_fitted
    np.testing.assert_array_equal(again.rows, np.arange(NUM))
    np.testing.assert_allclose(again.probabilities(report.chosen), p, rtol=1e-6)


def test_a_model_that_stays_has_them_too():
    calm = (np.random.default_rng(3).random(NUM) < special.expit(LOGITS)).astype(float)
    report = report_of(labels=calm, methods=["bias", "platt"], fields=())
    assert report.chosen == "identity"
    crossed = report.cross_fitted
    np.testing.assert_array_equal(crossed.probabilities("identity"), special.expit(LOGITS))
    # Each array is its own: a view would keep those of all candidates in memory.
    assert all(values.base is None for values in crossed.logits.values())


def test_files_have_no_rows_and_wrong_names_are_told():
    report = report_of()
    figures = report.to_dict()
    assert "cross_fitted" not in figures
    assert len(json.dumps(figures)) < 10_000
    assert len(repr(report)) < 10_000
    with pytest.raises(ValueError, match=r"`name`.*'plat'.*'platt'"):
        report.cross_fitted.probabilities("plat")
