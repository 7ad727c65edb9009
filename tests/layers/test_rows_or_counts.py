"""Rows, the same rows as counts, counts divided among lines, any order of lines: one answer.

And fits are functions of the rows and the seeds, in one process and in another.
"""

import json
import pathlib
import subprocess
import sys
import warnings

import keras
import numpy as np
import pandas as pd
import pytest

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
LABELS = (RNG.random(NUM_LINES) < 1 / (1 + np.exp(-TRUE))).astype(int)
CLASS_LOGITS = RNG.normal(size=(NUM_LINES, NUM_CLASSES)).round(1)
CLASSES = np.argmax(CLASS_LOGITS + RNG.gumbel(size=CLASS_LOGITS.shape), axis=1)
COUNTS = RNG.integers(1, 6, NUM_LINES)
PART = RNG.integers(0, COUNTS + 1)
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
FIGURES = ("num_rows", "log_loss_before", "log_loss_after", "cross_fitted_both", "standard_error")
SETTINGS = layers.FitSettings(folds=2, max_epochs=2)


def rows_of(form, name=""):
    """Scores, labels, features and counts of a form."""
    numbers, counts = FORMS[form]
    scores, labels = (CLASS_LOGITS, CLASSES) if has_classes(name) else (LOGITS, LABELS)
    features = {key: column[numbers] for key, column in FEATURES.items()}
    return scores[numbers], labels[numbers], features, counts


def outputs(head, name):
    scores = CLASS_LOGITS if has_classes(name) else LOGITS
    found = keras.ops.convert_to_numpy(head(scores.astype("float32"), FEATURES))
    logits = found.astype("float64").reshape(scores.shape)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True)) if logits.ndim == 2 else None
    return 1 / (1 + np.exp(-logits)) if odds is None else odds / odds.sum(axis=1, keepdims=True)


def fitted(name, form="counts"):
    head = HEADS[name]()
    head.fit(*rows_of(form, name), weights_are="counts", settings=SETTINGS)
    return head


def told(summary, names=FIGURES):
    return [getattr(summary, name) for name in names]


@pytest.mark.parametrize("name", slow_except(QUICK, HEADS))
def test_every_head_has_one_fit_and_one_interval(name):
    heads = {form: fitted(name, form) for form in FORMS}
    expected = heads.pop("rows")
    has_interval = expected.posterior is not None and not has_classes(name)
    for head in heads.values():
        np.testing.assert_allclose(outputs(head, name), outputs(expected, name), atol=1e-6)
        figures = told(head.fit_summary), told(expected.fit_summary)
        np.testing.assert_allclose(*figures, atol=1e-6)
        if has_interval:
            intervals = (each.interval(LOGITS, FEATURES) for each in (head, expected))
            np.testing.assert_allclose(*intervals, atol=2e-6)


@pytest.mark.parametrize("name", slow_except(["FieldBias"], ["FieldBias", "BoostedTrees"]))
def test_fit_head_compares_alike_and_knows_the_rows_again(name):
    make = {"BoostedTrees": lambda: every_head.trees(HEADS["FieldBias"](), every_head.SITE, [])}
    found = []
    for form in FORMS:
        model = model_with(make.get(name, HEADS[name])())
        logits, labels, features, counts = rows_of(form)
        x = {"score": logits.astype("float32"), "site": features["site"].astype("int32")}
        found.append(kc.fit_head(model, x, labels, counts, weights_are="counts", verbose=0))
        x = {"score": LOGITS.astype("float32"), "site": FEATURES["site"].astype("int32")}
        again = kc.fit_head(model, x, LABELS, COUNTS, weights_are="counts", verbose=0)
        assert np.isnan(again.change)
    figures = [told(each, (*FIGURES[:3], "change", "change_error")) for each in found]
    for other in figures[1:]:
        np.testing.assert_allclose(other, figures[0], atol=1e-6)


@pytest.mark.filterwarnings("ignore:The 588 rows of the development set are 200 different rows")
@pytest.mark.parametrize("methods", slow_except(["quick"], ["quick", "default"]))
def test_calibrate_scores_chooses_and_reports_alike(methods):
    found = []
    for form in FORMS:
        logits, labels, features, counts = rows_of(form)
        options = {"fields": ["site", "ad"], "numeric": ["price"], "methods": methods}
        options |= {"from_logits": True, "weights_are": "counts", "verbose": 0}
        model = kc.calibrate_scores(logits, labels, pd.DataFrame(features), counts, **options)
        found.append((model.predict({"score": LOGITS, **FEATURES}, verbose=0), model.report))
    for probabilities, report in found[1:]:
        np.testing.assert_allclose(probabilities, found[0][0], atol=1e-6)
        assert report.num_rows == found[0][1].num_rows == COUNTS.sum()
        for one, other in zip(report.scores, found[0][1].scores, strict=True):
            names = ("log_loss", "log_loss_change_error", "brier", "auc")
            np.testing.assert_allclose(told(one, names), told(other, names), atol=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["FieldBias, two fields", "FieldILPS", "PlattScaling"])
def test_a_log_in_few_groups_is_its_rows(name):
    """Also where its lines are counted: logits in the middle of a bin have one group each."""
    expected = HEADS[name]()
    logits = np.round(LOGITS)
    for form in FORMS:
        _, labels, features, counts = rows_of(form)
        columns = {"site": features["site"], "ad": features["ad"], "l": logits[FORMS[form][0]]}
        if counts is None:
            expected.fit(columns["l"], labels, features)
        weights = np.ones(len(labels)) if counts is None else counts.astype(float)
        frame = pd.DataFrame({**columns, "y": labels, "w": weights})
        log = kc.logs.ScoredLog(frame, label="y", logit="l", sample_weight="w")
        head = HEADS[name]()
        summary = kc.fit_calibrator(head, log, verbose=0, weights_are="counts")
        np.testing.assert_allclose(outputs(head, name), outputs(expected, name), atol=1e-6)
        assert summary.num_rows == COUNTS.sum()


def test_multicalibration_error_counts_rows():
    predictions, found = 1 / (1 + np.exp(-LOGITS)), []
    for form in FORMS:
        numbers, counts = FORMS[form]
        features = {key: column[numbers] for key, column in FEATURES.items()}
        given = LABELS[numbers], predictions[numbers], features, counts
        found.append(kc.scoring.multicalibration_error(*given, min_rows=40, weights_are="counts"))
    by_name = [{segment.name: segment for segment in each.segments} for each in found]
    assert by_name[0].keys() == by_name[1].keys() == by_name[2].keys()
    assert any("price ≤" in name for name in by_name[0])
    for name, segment in by_name[0].items():
        for other in by_name[1:]:
            names = ("num_rows", "error", "deviations", "p_value")
            np.testing.assert_allclose(told(segment, names), told(other[name], names), atol=1e-9)
    with pytest.raises(ValueError, match="must be whole numbers"):
        kc.scoring.multicalibration_error(*given[:3], 0.5 + given[3], weights_are="counts")


def all_fits():
    """The outputs of two fits of one head, and of one of another, of all heads."""
    unseeded = layers.NeuralCalibration(layers.ILPS(6), layers.FieldNetwork(every_head.SITE))
    heads = {name: make() for name, make in HEADS.items()} | {"unseeded": unseeded}
    found = {}
    for name, head in heads.items():
        for number in range(2):
            keras.utils.set_random_seed(number)
            head.fit(*rows_of("counts", name), weights_are="counts", settings=SETTINGS)
            found[f"{name}, {number}"] = outputs(head, name).tolist()
    return found


@pytest.mark.slow
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
    found = []
    for numbers in (np.arange(NUM_LINES), order):
        head = HEADS["FieldBias, two fields"]()
        features = {key: column[numbers] for key, column in FEATURES.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            head.fit(LOGITS[numbers], LABELS[numbers], features, weights[numbers])
        found.append(outputs(head, ""))
    np.testing.assert_allclose(*found, atol=1e-6)
