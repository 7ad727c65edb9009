"""The race of candidates: what is dropped and why, what is forced, and what a machine lacks."""

import re
import sys
import time

import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc
from calibration_records._progress import ProgressBar
from keras_calibration._rows.rows import Rows
from keras_calibration.calibration.candidate_fits import Race
from keras_calibration.calibration.candidates import candidates
from keras_calibration.calibration.splits import default_folds, splits_of
from keras_calibration.layers import PlattScaling

NUM_ROWS = 1500
OPTIONS = {"from_logits": True, "fields": ["site"], "numeric": ["price"], "verbose": 0}


def make_rows(effect, seed=0):
    """Logits, labels and columns; with the effect, the price shifts the logit of every site."""
    generator = np.random.default_rng(seed)
    logits, price = generator.normal(-1, 1, (2, NUM_ROWS))
    site = generator.integers(0, 4, NUM_ROWS)
    eta = logits + effect * np.abs(price) * (site % 2)
    labels = (generator.random(NUM_ROWS) < expit(eta)).astype(float)
    return logits, labels, {"site": site, "price": price}


def names_of(report):
    return {score.name for score in report.scores}


def test_trees_that_gain_nothing_are_left_out_with_their_figures():
    logits, labels, columns = make_rows(0.0)
    report = kc.calibrate_scores(
        logits, labels, columns, methods=["field_bias", "trees"], **OPTIONS
    ).report
    assert "+0.000000" not in report.left_out["trees"]
    assert report.left_out["trees"].startswith(
        "On top of 'field_bias', no number of trees lowers the cross-fitted log loss"
    )
    assert re.search(r"\(\d+\.\d s\)$", report.left_out["trees"])  # what it has cost
    assert report.weights.get("identity", 0.0) > 0.8


def test_trees_bring_the_candidate_that_they_stand_on():
    logits, labels, columns = make_rows(2.0)
    report = kc.calibrate_scores(logits, labels, columns, methods="trees", **OPTIONS).report
    assert report.chosen == "trees"
    assert names_of(report) == {"identity", "field_bias", "trees"}
    losses = {score.name: score.log_loss for score in report.scores}
    assert losses["trees"] < losses["field_bias"] - 0.01


@pytest.mark.slow
def test_trees_that_are_named_alone_are_used_even_if_there_are_none():
    # What runs every night must not fail on the day on which trees gain nothing.
    logits, labels, columns = make_rows(0.0)
    labels = np.random.default_rng(2).random(NUM_ROWS) < expit(logits + columns["site"] - 1.5)
    model = kc.calibrate_scores(logits, labels, columns, methods="trees", **OPTIONS)
    assert model.report.chosen == "trees"
    assert model.head.fit_summary.num_iterations == 0
    offsets = kc.calibrate_scores(logits, labels, columns, methods="field_bias", **OPTIONS)
    x = {"score": logits, **columns}
    expected = offsets.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)


@pytest.fixture
def without_lightgbm(monkeypatch):
    """As where LightGBM, or the library of OpenMP, cannot be loaded."""
    monkeypatch.setitem(sys.modules, "lightgbm", None)


@pytest.mark.slow
@pytest.mark.usefixtures("without_lightgbm")
def test_without_lightgbm_the_others_are_compared():
    logits, labels, columns = make_rows(2.0)
    with pytest.warns(UserWarning, match=r"'trees' could not be fitted.*Install lightgbm"):
        model = kc.calibrate_scores(logits, labels, columns, **OPTIONS)
    report = model.report
    assert "Install lightgbm" in report.left_out["trees"]
    assert "Left out: trees." in str(report)
    assert report.after.log_loss < report.before.log_loss
    with pytest.raises(ImportError, match="Install lightgbm"):
        kc.calibrate_scores(logits, labels, columns, methods="trees", **OPTIONS)


def test_the_seconds_of_a_candidate_are_those_of_all_its_fits(monkeypatch):
    logits, labels, columns = make_rows(2.0)
    rows = Rows(logits, labels, None, features=columns)
    splits = splits_of(default_folds(rows, 2), rows)
    race = Race(rows, splits, ProgressBar(3, "candidates", 0), logits)
    possible = {c.name: c for c in candidates({"site": 4}, ["price"], 2)}
    fitted = PlattScaling.fitted

    def slow(self, *arguments):
        time.sleep(0.2)
        return fitted(self, *arguments)

    monkeypatch.setattr(PlattScaling, "fitted", slow)
    start = time.perf_counter()
    race.run([possible[name] for name in ("platt", "field_bias", "trees")], None)
    # The fit to all rows, and those to the other rows of two folds.
    assert race.fits["platt"].seconds > 3 * 0.2
    # The trees stand on a fit to all rows of another candidate, which is counted once.
    assert sum(fit.seconds for fit in race.fits.values()) <= time.perf_counter() - start
