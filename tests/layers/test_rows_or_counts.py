"""Rows, the same rows as counts, counts divided among lines, any order of lines: one answer.

And fits are functions of the rows and the seeds, in one process and in another.
"""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, softmax

import every_head
import keras_calibration as kc
from every_head import NUM_CLASSES, NUM_SITES, has_classes
from keras_calibration import layers
from site_worlds import model_with
from tiers import slow_except

NUM_LINES = 200
RNG = np.random.default_rng(0)
# Coarse columns, so that many lines are equal once they are divided.
LOGITS = np.round(RNG.normal(-0.5, 1.2, NUM_LINES), 1)
FEATURES = {
    "site": RNG.integers(0, NUM_SITES, NUM_LINES),
    "ad": RNG.integers(0, 8, NUM_LINES),
    "price": np.where(RNG.random(NUM_LINES) < 0.1, np.nan, RNG.normal(size=NUM_LINES).round(1)),
}
TRUE = LOGITS - 0.4 * FEATURES["site"] + 0.5 * (FEATURES["ad"] % 3)
LABELS = (RNG.random(NUM_LINES) < expit(TRUE)).astype(int)
CLASS_LOGITS = RNG.normal(size=(NUM_LINES, NUM_CLASSES)).round(1)
CLASSES = np.argmax(CLASS_LOGITS + RNG.gumbel(size=CLASS_LOGITS.shape), axis=1)
COUNTS = RNG.integers(1, 6, NUM_LINES)
PART = RNG.integers(0, COUNTS + 1)  # a part of 0 is a row of weight 0
DIVIDED = RNG.permutation(np.flatnonzero(np.append(PART, COUNTS - PART)))
# Name → numbers of lines, and their counts.
FORMS = {
    "rows": (RNG.permutation(np.repeat(np.arange(NUM_LINES), COUNTS)), None),
    "counts": (np.arange(NUM_LINES), COUNTS),
    "divided": (DIVIDED % NUM_LINES, np.append(PART, COUNTS - PART)[DIVIDED]),
}
TWO = {"site": NUM_SITES, "ad": 8}
HEADS = {name: make for name, (make, _) in every_head.HEADS.items()} | {
    "FieldBias, two fields": lambda: layers.FieldBias(TWO),
    "FieldBias, two fields and a curve": lambda: layers.FieldBias(TWO, layers.ILPS(6), ["price"]),
    "FieldILPS, two fields": lambda: layers.FieldILPS(TWO),
    "BoostedTrees, two fields": lambda: every_head.trees(layers.FieldBias(TWO), TWO, ["price"]),
}
SLOW = [n for n in HEADS if n.startswith(("Neural", "FieldILPS,", "FieldBias,", "BoostedTrees,"))]
QUICK = [name for name in HEADS if name not in SLOW] + ["FieldBias, two fields"]
FIGURES = (
    "num_rows",
    "log_loss_before",
    "log_loss_in_sample",
    "cross_fitted_both",
    "standard_error",
)
SETTINGS = layers.FitSettings(folds=2, max_epochs=2)


def rows_of(form, name=""):
    """Scores, labels, features and counts of a form."""
    numbers, counts = FORMS[form]
    scores, labels = (CLASS_LOGITS, CLASSES) if has_classes(name) else (LOGITS, LABELS)
    features = {key: column[numbers] for key, column in FEATURES.items()}
    return scores[numbers], labels[numbers], features, counts


def outputs(head, name):
    scores = CLASS_LOGITS if has_classes(name) else LOGITS
    calibrated = keras.ops.convert_to_numpy(head(scores.astype("float32"), FEATURES))
    logits = calibrated.astype("float64").reshape(scores.shape)
    return softmax(logits, axis=1) if has_classes(name) else expit(logits)


def fitted(name, form="counts"):
    head = HEADS[name]()
    head.fit(*rows_of(form, name), weights_are="counts", settings=SETTINGS)
    return head


def assert_alike(received, expected, names=FIGURES, atol=1e-6):
    figures = ([getattr(result, name) for name in names] for result in (received, expected))
    np.testing.assert_allclose(*figures, atol=atol)


@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")  # counted ones
@pytest.mark.parametrize("name", slow_except(QUICK, HEADS))
def test_every_head_has_one_fit_and_one_interval(name):
    heads = {form: fitted(name, form) for form in FORMS}
    expected = heads.pop("rows")
    has_interval = expected.posterior is not None and not has_classes(name)
    for head in heads.values():
        np.testing.assert_allclose(outputs(head, name), outputs(expected, name), atol=1e-6)
        assert_alike(head.fit_summary, expected.fit_summary)
        if has_interval:
            intervals = (layer.interval(LOGITS, FEATURES) for layer in (head, expected))
            np.testing.assert_allclose(*intervals, atol=2e-6)


@pytest.mark.parametrize("name", slow_except(["FieldBias"], ["FieldBias", "BoostedTrees"]))
def test_fit_head_compares_alike_and_knows_the_rows_again(name):
    make = {"BoostedTrees": lambda: every_head.trees(HEADS["FieldBias"](), every_head.SITE, [])}
    summaries = []
    for form in FORMS:
        model, fits = model_with(make.get(name, HEADS[name])()), []
        for logits, labels, features, counts in (rows_of(form), rows_of("counts")):
            x = {"score": logits.astype("float32"), "site": features["site"].astype("int32")}
            fits.append(kc.fit_head(model, x, labels, counts, weights_are="counts", verbose=0))
        summaries.append(fits[0])
        assert np.isnan(fits[1].change)
    for other in summaries[1:]:
        assert_alike(other, summaries[0], (*FIGURES[:3], "change", "change_error"))


@pytest.mark.filterwarnings("ignore:The 588 rows of the development set are 200 different rows")
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("methods", [["field_bias", "additive"], "quick", "default"])
def test_calibrate_scores_chooses_and_reports_alike(methods):
    results = []
    for form in FORMS:
        logits, labels, features, counts = rows_of(form)
        options = {"fields": ["site", "ad"], "numeric": ["price"], "methods": methods}
        options |= {"from_logits": True, "weights_are": "counts", "verbose": 0}
        model = kc.calibrate_scores(logits, labels, pd.DataFrame(features), counts, **options)
        results.append((model.predict({"score": LOGITS, **FEATURES}, verbose=0), model.report))
    for probabilities, report in results[1:]:
        np.testing.assert_allclose(probabilities, results[0][0], atol=1e-6)
        assert report.num_rows == results[0][1].num_rows == COUNTS.sum()
        for one, other in zip(report.scores, results[0][1].scores, strict=True):
            assert_alike(one, other, ("log_loss", "log_loss_change_error", "brier", "auc"))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["FieldBias, two fields", "FieldILPS", "PlattScaling"])
def test_a_log_in_few_groups_is_its_rows(name):
    """Also where its lines are counted: logits in the middle of a bin have one group each."""
    expected = HEADS[name]()
    for form in FORMS:
        logits, labels, features, counts = rows_of(form)
        logits = np.round(logits)
        if counts is None:
            expected.fit(logits, labels, features)
        weights = np.ones(len(labels)) if counts is None else counts.astype(float)
        frame = pd.DataFrame({**features, "l": logits, "y": labels, "w": weights})
        log = kc.logs.ScoredLog(frame, label="y", logit="l", sample_weight="w")
        head = HEADS[name]()
        summary = kc.fit_calibrator(head, log, verbose=0, weights_are="counts")
        np.testing.assert_allclose(outputs(head, name), outputs(expected, name), atol=1e-6)
        assert summary.num_rows == COUNTS.sum()


def test_multicalibration_error_counts_rows():
    segments = []
    for form in FORMS:
        logits, labels, features, counts = rows_of(form)
        rows = labels, expit(logits), features, counts
        result = kc.scoring.multicalibration_error(*rows, min_rows=40, weights_are="counts")
        segments.append({segment.name: segment for segment in result.segments})
    assert segments[0].keys() == segments[1].keys() == segments[2].keys()
    assert any("price ≤" in name for name in segments[0])
    for name, segment in segments[0].items():
        for other in segments[1:]:
            names = ("num_rows", "error", "deviations", "p_value")
            assert_alike(segment, other[name], names, atol=1e-9)
    with pytest.raises(ValueError, match=r"whole numbers.*3.5"):
        kc.scoring.multicalibration_error(*rows[:3], 0.5 + rows[3], weights_are="counts")


def all_fits():
    """The outputs of two fits of one head, and of one of another, of all heads."""
    unseeded = layers.NeuralCalibration(layers.ILPS(6), layers.FieldNetwork(every_head.SITE))
    heads = {name: make() for name, make in HEADS.items()} | {"unseeded": unseeded}
    all_outputs = {}
    for name, head in heads.items():
        for number in range(2):
            keras.utils.set_random_seed(number)
            head.fit(*rows_of("counts", name), weights_are="counts", settings=SETTINGS)
            all_outputs[f"{name}, {number}"] = outputs(head, name).tolist()
    return all_outputs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")
def test_fits_are_functions_of_rows_and_seeds():
    here = all_fits()
    code = "import json, test_rows_or_counts as t; print(json.dumps(t.all_fits()))"
    path = [str(pathlib.Path(__file__).parent), *sys.path]
    command = [sys.executable, "-c", f"import sys; sys.path = {path!r}; {code}"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    there = json.loads(run.stdout.splitlines()[-1])
    for name, expected in here.items():
        np.testing.assert_array_equal(there[name], expected, err_msg=name)
        first = f"{name.rpartition(', ')[0]}, 0"
        np.testing.assert_array_equal(expected, here[first], err_msg=name)


def test_a_fit_to_importances_does_not_depend_on_the_order_of_the_rows():
    weights, order = RNG.exponential(size=NUM_LINES), RNG.permutation(NUM_LINES)
    calibrated = []
    for numbers in (np.arange(NUM_LINES), order):
        head = HEADS["FieldBias, two fields"]()
        features = {key: column[numbers] for key, column in FEATURES.items()}
        head.fit(LOGITS[numbers], LABELS[numbers], features, weights[numbers])
        calibrated.append(outputs(head, ""))
    np.testing.assert_allclose(*calibrated, atol=1e-6)
