"""The progress bar of `calibrate`: honest about the time that is left."""

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.calibration.fit_progress import FitProgress


class Clock:
    """A clock that only goes on when it is told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def shown(monkeypatch):
    """The percentages that bars show, and what else happens."""
    events = []

    class Bar:
        def __init__(self, target, verbose, unit_name):
            assert target == 100

        def update(self, percent):
            events.append(percent)

    monkeypatch.setattr(keras.utils, "Progbar", Bar)
    return events


def test_the_bar_shows_the_share_of_the_expected_time(shown):
    clock = Clock()
    pieces = [("curve", 1.0), ("offsets", 2.0), ("offsets", 2.0), ("report", 1.0), ("offsets", 3.0)]
    progress = FitProgress(pieces, 1, clock)
    clock.now += 1  # as expected: 8 seconds are left
    progress.end_piece("curve")
    clock.now += 20  # ten times as long as expected: so will the other fits of the kind be
    progress.end_piece("offsets")
    clock.now += 20
    progress.end_piece("offsets")
    clock.now += 5
    progress.end_piece("report")
    clock.now += 30
    progress.end()
    # The report at the mean pace, that of (seconds taken + 5) / (seconds expected + 5).
    left = (20 + 30 + 26 / 8, 30 + 46 / 10, 30)
    expected = [int(100 * t / (t + rest)) for t, rest in zip((21, 41, 46), left, strict=True)]
    assert shown == [11, *expected, 100]


def test_pieces_that_are_not_done_do_not_count(shown):
    clock = Clock()
    progress = FitProgress([("a", 1.0), ("b", 10.0), ("a", 1.0)], 1, clock)
    progress.skip("b")
    clock.now += 1
    progress.end_piece("a")
    progress.end_piece("b")
    assert shown == [50]


def test_the_bar_is_not_shown_before_a_hundredth_is_done(shown):
    # At 0 %, Keras says that 0 seconds are left.
    clock = Clock()
    progress = FitProgress([("a", 1.0), ("b", 1000.0)], 1, clock)
    clock.now += 1
    progress.end_piece("a")
    assert not shown


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("folds", [3, "forward"])
def test_it_ends_with_the_report_and_the_last_fit(folds, shown, monkeypatch):
    # It stood at 100 % when a third of the time was still to come.
    rng = np.random.default_rng(0)
    site = rng.integers(0, 5, 2000)
    logits = rng.normal(-1, 1, 2000)
    labels = rng.random(2000) < 1 / (1 + np.exp(-logits - (site - 2)))
    module = kc.calibrate.__globals__

    def noted(name):
        plain = module[name]

        def call(*arguments, **named):
            result = plain(*arguments, **named)
            shown.append(name)
            return result

        monkeypatch.setitem(module, name, call)

    noted("_report")
    noted("_head_of")
    options = {"from_logits": True, "methods": "quick", "folds": folds, "verbose": 1}
    kc.calibrate_scores(logits, labels, {"site": site}, fields=["site"], **options)
    percents = [event for event in shown if isinstance(event, int)]
    assert percents == sorted(percents)
    assert percents.index(100) == len(percents) - 1
    assert shown[-4:] == ["_report", percents[-2], "_head_of", 100]


def test_a_candidate_that_fails_leaves_the_bar(shown):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 6 == 0  # too few positives for trees
    logits = rng.normal(size=60) + 2 * labels
    options = {"from_logits": True, "fields": ["site"], "verbose": 1}
    report = kc.calibrate_scores(logits, labels, {"site": np.arange(60) % 3}, **options).report
    assert "trees" in report.left_out
    assert shown[-1] == 100
