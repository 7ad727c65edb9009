"""The picture of a comparison."""

import sys

import numpy as np
import pytest

from calibration_records import Ledger, compare
from calibration_records.comparison.comparison_display import ComparisonDisplay


def comparison_of(folder, shift, num_runs=6):
    ledger = Ledger(folder)
    for seed in range(num_runs):
        for name, first, loss in (("deepfm", 0, 0.5), ("dcn", shift, 0.4)):
            values = {"val_loss": [loss + (7 * seed % 5) / 1e3]}
            run = {"pipeline": name, "seed": seed + first, "epochs": [0], "metrics": values}
            ledger.append({**run, "status": "finished"})
    return compare(ledger, "deepfm", "dcn", metric="loss")


@pytest.mark.parametrize(("shift", "num_lines"), [(0, 6), (100, 0)])
def test_it_draws_runs_means_and_the_interval(tmp_path, shift, num_lines):
    import matplotlib.pyplot as plt

    comparison = comparison_of(tmp_path, shift)
    ax = comparison.plot().ax_
    assert sum(len(line.get_xdata()) == 2 for line in ax.lines) == num_lines
    points = [line.get_ydata() for line in ax.lines if len(line.get_xdata()) == 6]
    np.testing.assert_array_equal(points[0], comparison.a.metric_values("val_loss"))
    interval = ax.containers[0].lines[2][0].get_segments()[0][:, 1]
    expected = np.array(comparison.difference[1:3]) + comparison.deciding.mean_a
    np.testing.assert_allclose(interval, expected)
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == ["A: deepfm\n6 runs", "B: dcn\n6 runs", "B − A\n95 % interval"]
    plt.close(ax.figure)


def test_dollars_in_a_name_are_no_formula(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    # Texts stay texts in the file.
    monkeypatch.setitem(plt.rcParams, "svg.fonttype", "none")
    runs = {"a$\\x{$": [0.5, 0.6], "$5 and $": [0.4, 0.5]}
    display = ComparisonDisplay(runs, ([], []), None, "loss in $x$").plot()
    display.figure_.savefig(tmp_path / "figure.svg")
    plt.close(display.figure_)
    text = (tmp_path / "figure.svg").read_text("utf-8")
    for name in (*runs, "loss in $x$"):
        assert f"{name}<" in text


def test_several_axes_are_refused(tmp_path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2)
    for ax in (axes, [axes[0]], figure):
        with pytest.raises(ValueError, match="`ax`"):
            comparison_of(tmp_path, 0, num_runs=1).plot(ax)
    plt.close(figure)


def test_too_few_runs_are_drawn_without_an_interval(tmp_path):
    ax = comparison_of(tmp_path, 0, num_runs=1).plot().ax_
    assert len(ax.get_xticklabels()) == 2


def test_matplotlib_is_needed_only_to_draw(tmp_path, monkeypatch):
    comparison = comparison_of(tmp_path, 0)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="plots"):
        comparison.plot()
