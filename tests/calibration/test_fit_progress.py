"""The progress bar of `calibrate`, which counts candidates."""

import numpy as np
import pytest

import keras_calibration as kc
from calibration_records._progress import ProgressBar
from keras_calibration.calibration.choose import choose


@pytest.fixture
def shown(monkeypatch):
    """The counts that the bar shows with its total, and what else happens."""
    events = []

    class Bar(ProgressBar):
        def show(self, done, figures=""):
            super().show(done, figures)
            events.append((done, self.total))

    monkeypatch.setitem(choose.__globals__, "ProgressBar", Bar)
    return events


@pytest.mark.parametrize("time", [None, "order"])
def test_it_counts_the_candidates_and_ends_with_the_last_fit(time, shown, capsys):
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 1, 2000)
    labels = rng.random(2000) < 1 / (1 + np.exp(-logits - 1))
    options = {"from_logits": True, "methods": ["platt", "beta", "bias"], "time": time}
    kc.calibrate_scores(logits, labels, verbose=1, **options)
    total = 5  # the identity and the last fit
    assert {num_candidates for _, num_candidates in shown} == {total}
    numbers = [done for done, _ in shown]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(numbers[0], total + 1))
    assert f"{total}/{total} candidates" in capsys.readouterr().out


def test_a_candidate_that_fails_counts_too(shown):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 6 == 0  # too few positives for trees
    logits = rng.normal(size=60) + 2 * labels
    options = {"from_logits": True, "fields": ["site"], "verbose": 1}
    report = kc.calibrate_scores(logits, labels, {"site": np.arange(60) % 3}, **options).report
    assert "trees" in report.left_out
    done, total = shown[-1]
    assert done == total
