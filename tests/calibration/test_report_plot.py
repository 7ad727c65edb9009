"""The pictures of a report, and its table of segments."""

import json
import warnings

import numpy as np
import pytest
from scipy import special

import keras_calibration as kc
from calibration.test_calibrate import fold_of
from keras_calibration._rows.rows import Rows
from keras_calibration.calibration import CalibrationReport
from keras_calibration.calibration.calibration_report import CandidateScore


def report_rows():
    rng = np.random.default_rng(0)
    logits, site = rng.normal(-1, 1, 2000), rng.choice(["a", "b"], 2000)
    return logits, site, rng.random(2000) < special.expit(logits + (site == "a"))


def report_of(**options):
    logits, site, labels = report_rows()
    options = {"from_logits": True, "methods": "quick", "verbose": 0, **options}
    return kc.calibrate_scores(logits, labels, {"site": site}, fields=["site"], **options).report


def test_a_report_draws_the_field_before_and_after_calibration():
    report = report_of()
    display = report.plot()
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == ["before", "after"]
    # The rows of one fold, each predicted by the same fit to the others.
    logits, site, labels = report_rows()
    fold = fold_of(3, Rows(logits, labels.astype(float), None, {"site": site}))
    rates = display.curves["before"]
    for place, value in enumerate(display.value_names):
        is_shown = (fold == 2) & (site == value)
        assert rates.num_rows[place] == is_shown.sum()
        assert rates.observed[place] == pytest.approx(labels[is_shown].mean())
        predicted = special.expit(logits[is_shown]).mean()
        assert rates.predicted[place] == pytest.approx(predicted, abs=1e-6)
    assert set(report.plot("reliability").curves) == {"before", "after"}
    with pytest.raises(ValueError, match=r"Received: 'age'\. Available: 'site', 'reliability'"):
        report.plot("age")
    json.dumps(report.to_dict())
    assert "displays" not in report.to_dict()


def test_segments_that_are_still_off_are_a_table():
    report = report_of(methods="bias")
    heading, first, *_ = str(report.still_off).splitlines()
    assert heading.split()[:2] == ["segment", "rows"]
    assert first.startswith(report.still_off[0].name)
    assert report.still_off._repr_html_().startswith("<pre>segment")


def test_a_warning_of_a_fit_to_some_rows_says_so_once():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=300)
    labels = rng.random(300) < special.expit(-logits)
    options = {"from_logits": True, "methods": ["platt"], "time": "order", "verbose": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kc.calibrate_scores(logits, labels, **options)
    messages = [str(warning.message) for warning in caught]
    assert sum("early blocks of time alone" in text for text in messages) == 1
    assert {warning.filename for warning in caught} == {__file__}


def test_a_change_that_rounds_to_0_has_no_minus():
    figures = {"brier": 0.1, "auc": 0.7, "field_ece": {}, "field_rce": {}, "seconds": 0.0}
    ratio = {"calibration_ratio": 1.0, "calibration_ratio_error": 0.1}
    changes = {"identity": 0.0, "bias": -1e-9}
    scores = tuple(
        CandidateScore(name, 0.3, change, 1e-5 * (change < 0), **ratio, **figures)
        for name, change in changes.items()
    )
    text = str(CalibrationReport(100, 3, scores, "identity", "No reason.", {}, {}))
    assert " 0 ± 0 " in text
    assert "+0.000000 ± 0.000010" in text
