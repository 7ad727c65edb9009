"""What a refresh says and decides: figures, a fit that is worse, scores that are calibrated."""

import json
import os
import re
import warnings

import keras
import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc
from keras_calibration.export.provenance import describe_model
from keras_calibration.export.spec import Spec
from served import provenance_of
from symbols import symbols

NUM_SITES, SHIFT = 30, -3.0
OFFSETS = np.random.default_rng(1).normal(0, 0.4, NUM_SITES)


def rows(num_rows, seed, more=0.0):
    """Logits that are 3 too high, as of class weights, the labels, and the sites."""
    rng = np.random.default_rng(seed)
    logit, site = rng.normal(0, 1, num_rows), rng.integers(0, NUM_SITES, num_rows).astype("int32")
    return logit, rng.random(num_rows) < expit(logit + SHIFT + OFFSETS[site] + more), {"site": site}


@pytest.fixture(scope="module")
def model():
    inputs = symbols(score=(1,), site="int32")
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))
    model = kc.models.CalibratedModel(base, kc.layers.FieldBias({"site": NUM_SITES}))
    logit, labels, features = rows(20_000, 0)
    kc.fit_head(model, {"score": logit[:, None], **features}, labels, verbose=0)
    return model


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    return kc.export_savedmodel(model, tmp_path_factory.mktemp("served"), version=1)


def calibrated(model, logit, features):
    head = model.head(logit.astype("float32")[:, None], features)
    return expit(np.asarray(head, float).reshape(-1))


def numbers_in(line):
    return [float(n.replace(",", "")) for n in re.findall(r"[-+]?\d[\d,]*\.?\d*", line)]


def test_the_line_and_the_summary_agree(served, capsys):
    logit, labels, features = rows(5_000, 1, more=0.3)
    done = kc.refresh_savedmodel(served, logit, labels, features, from_logits=True)
    shown = capsys.readouterr().out
    assert re.match(r"2/2 steps, 0:0\d:\d\d\n", shown)
    assert shown.endswith(f"{done.report}\n")
    assert done.is_written
    assert done.path == served.parent / "2"
    assert os.fspath(done) == str(done) == str(done.path)
    assert done / "saved_model.pb" == done.path / "saved_model.pb"
    fit = provenance_of(done.path)["fit"]
    assert (fit["converged"], fit["is_used"]) == (True, True)
    # A refresh of the new version on its own rows has nothing to compare.
    again = kc.refresh_savedmodel(
        done, logit, labels, features, from_logits=True, dry_run=True, verbose=0
    )
    assert np.isnan(again.summary.change)
    assert json.dumps(again.summary.to_dict()["logits"]) == json.dumps(
        provenance_of(done)["logits"]
    )
    assert capsys.readouterr().out == ""


def said(served, data, **keywords):
    """The warnings of a refresh, and what it returns."""
    how = {"from_logits": True, "dry_run": True, "verbose": 0, **keywords}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = kc.refresh_savedmodel(served, *data, **how)
    return [str(warning.message) for warning in caught], done


def test_a_fit_that_is_worse_is_announced_and_not_written(served):
    versions = os.listdir(served.parent)
    announced = 0
    for seed in range(6):
        data = rows(300, seed)
        messages, done = said(served, data)
        is_worse = done.summary.change > done.summary.change_error
        assert sum("worse than the head" in message for message in messages) == is_worse
        announced += is_worse
        if done.summary.change > 0:
            messages, kept = said(served, data, only_if_better=True, dry_run=False)
            assert (kept.path, kept.is_written, kept.summary.is_used) == (served, False, False)
            assert any("stays as it was" in message for message in messages)
            assert "stays as it was" in str(kept.summary)
            assert kept.summary.change == done.summary.change
    assert 0 < announced < 6
    assert os.listdir(served.parent) == versions


def test_the_served_probability_as_the_score_is_named(model, served):
    logit, labels, features = rows(5_000, 2)
    score = calibrated(model, logit, features)
    messages, _ = said(served, (score, labels, features), from_logits=False)
    (message,) = (message for message in messages if "calibrated already" in message)
    # What the served head predicts, what is observed, and the scores alone.
    twice = calibrated(model, np.log(score / (1 - score)), features).mean()
    expected = [twice, labels.mean(), score.mean()]
    np.testing.assert_allclose(numbers_in(message)[:3], expected, rtol=1e-3)
    # The same mistake with the model, and with a choice of its calibration.
    x = {"score": np.log(score / (1 - score))[:, None], **features}
    copied = type(model).from_config(model.get_config())
    copied.set_weights(model.get_weights())
    copied.head.fit_summary = model.head.fit_summary
    with pytest.warns(UserWarning, match="calibrated already"):
        kc.calibrate(copied, x, labels, methods="quick", verbose=0)
    with pytest.warns(UserWarning, match="calibrated already"):
        kc.fit_head(copied, x, labels, verbose=0)


@pytest.mark.parametrize("more", [0.0, 0.5, -0.5, -SHIFT])
def test_rates_that_change_are_no_mistake(served, more):
    """Also where the base model becomes right without its correction: its scores are as before."""
    messages, done = said(served, rows(4_000, 3, more))
    assert not any("calibrated" in message for message in messages)
    assert done.summary.change < (0 if more else 0.01)


def test_another_unit_of_the_logits_is_named(served):
    logit, labels, features = rows(2_000, 4)
    for factor in (1 / np.log(10), 2.5):
        messages, _ = said(served, (factor * logit, labels, features))
        assert sum("natural logarithms" in message for message in messages) == 1
    messages, _ = said(served, (1.4 * logit + 0.3, labels, features))
    assert not any("natural logarithms" in message for message in messages)


def test_the_decision_to_change_nothing_is_exported_with_its_report(tmp_path):
    """`calibrate` has looked at the rows: the export does not call its result unfitted."""
    rng = np.random.default_rng(3)
    logit = rng.normal(-1, 1, 1500)
    labels = rng.random(1500) < expit(logit)
    scores = {"labels": labels, "from_logits": True, "verbose": 0}
    model = kc.calibrate_scores(logit, methods="quick", **scores)
    assert model.report.chosen == "identity"
    path = kc.export_savedmodel(model, tmp_path / "1")
    told = provenance_of(path)
    assert told["report"]["chosen"] == "identity"
    assert told["fit"]["is_used"] is False
    assert told["fit"]["change"] == 0
    # It was fitted to no rows, so that a fit to the same rows is compared with it.
    again = kc.refresh_savedmodel(path, logit, labels, from_logits=True, verbose=0)
    assert np.isfinite(again.summary.change)
    assert again.is_written == (again.summary.change < 0)


@pytest.mark.parametrize("num_rows", [200, 1500])
def test_a_report_is_exported_with_the_fit_that_it_describes_alone(num_rows, tmp_path):
    rng = np.random.default_rng(3)
    logit = rng.normal(-1, 1, 1500)
    labels = rng.random(1500) < expit(0.6 * logit + 0.5)
    scores = {"labels": labels, "from_logits": True, "verbose": 0}
    model = kc.calibrate_scores(logit, methods="platt", **scores)
    assert describe_model(Spec.from_model(model))["report"]["chosen"] == "platt"
    model.head.fit(logit[:num_rows], labels[:num_rows])
    assert describe_model(Spec.from_model(model))["report"] is None
