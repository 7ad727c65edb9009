"""Accuracies and intervals of pairs of pipelines in a ledger, against loops in NumPy."""

import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import independent_seed_accuracy

sys.path.append(str(Path(__file__).parents[2] / "examples" / "calibrated_metric"))
import pairs
from pairs import Pair, pair_rows

CALIBRATED = {"ours": "val_calibrated_log_loss"}
PAIR = Pair("size", "a", "b")


def record(ledger, pipeline, losses, calibrated, first_seed=0, **fields):
    for seed, (plain, ours) in enumerate(zip(losses, calibrated, strict=True), first_seed):
        metrics = {"val_log_loss": [plain], "val_calibrated_log_loss": [ours]}
        run = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
        ledger.append(run | {"metrics": metrics} | fields)


@pytest.fixture
def runs(tmp_path):
    """A ledger where b is better than a; the calibrated loss has less noise."""
    rng = np.random.default_rng(3)
    values = {
        name: (mean + 1e-2 * rng.normal(size=12), mean + 4e-3 * rng.normal(size=12))
        for name, mean in (("a", 0.51), ("b", 0.5))
    }
    ledger = Ledger(tmp_path / "runs")
    for name, losses in values.items():
        record(ledger, name, *losses)
    return ledger, values


def loop_accuracy(better, worse):
    """The share of pairs of runs with different seeds where `better` is lower."""
    wins = [
        float(x < y) + 0.5 * float(x == y)
        for i, x in enumerate(better)
        for j, y in enumerate(worse)
        if i != j
    ]
    return sum(wins) / len(wins)


def only_row(ledger, pair=PAIR):
    (row,) = pair_rows(ledger, [pair], plain="val_log_loss", calibrated=CALIBRATED)
    return row


def test_the_better_pipeline_has_the_lower_mean_loss_in_either_order(runs):
    ledger, values = runs
    for first, second in (("a", "b"), ("b", "a")):
        row = only_row(ledger, Pair("size", first, second))
        assert (row.better, row.worse, row.num_seeds) == ("b", "a", 12)
        gap = values["a"][0].mean() - values["b"][0].mean()
        np.testing.assert_allclose(row.difference.value, gap)
        assert row.difference.low < gap < row.difference.high


def test_means_deviations_and_accuracies_are_those_of_a_loop(runs):
    ledger, values = runs
    row = only_row(ledger)
    for k, name in enumerate(("plain", "ours")):
        better, worse = values["b"][k], values["a"][k]
        found = row.metrics[name]
        np.testing.assert_allclose(found.better_mean, better.mean())
        np.testing.assert_allclose(found.worse_mean, worse.mean())
        np.testing.assert_allclose(found.better_std, np.std(better, ddof=1))
        np.testing.assert_allclose(found.worse_std, np.std(worse, ddof=1))
        np.testing.assert_allclose(found.accuracy.value, loop_accuracy(better, worse))
        assert found.accuracy == independent_seed_accuracy(better, worse)
    plain, ours = row.metrics["plain"], row.metrics["ours"]
    np.testing.assert_allclose(ours.gain.value, ours.accuracy.value - plain.accuracy.value)
    assert plain.gain[:3] == (0, 0, 0)


def test_the_interval_of_the_gain_is_a_bootstrap_over_the_seeds(runs):
    ledger, values = runs
    gain = only_row(ledger).metrics["ours"].gain
    rng = np.random.default_rng(8)
    gains = []
    while len(gains) < 1500:
        drawn = rng.integers(0, 12, 12)
        different = drawn[:, None] != drawn[None, :]
        plain, ours = (
            (values["b"][k][drawn][:, None] < values["a"][k][drawn][None, :])[different].mean()
            for k in (0, 1)
        )
        gains.append(ours - plain)
    low, high = np.quantile(gains, [0.025, 0.975])
    np.testing.assert_allclose([gain.low, gain.high], [low, high], atol=0.03)
    assert gain.low < gain.value < gain.high


def test_only_common_finished_seeds_count_and_the_latest_run_of_each(tmp_path):
    ledger = Ledger(tmp_path)
    record(ledger, "a", [9.0, 0.3, 0.4], [9.0, 0.3, 0.4])
    record(ledger, "a", [0.2], [0.2])
    record(ledger, "b", [0.5, 0.6, 0.7], [0.5, 0.6, 0.7], first_seed=1)
    record(ledger, "b", [0.1], [0.1], status="diverged")
    row = only_row(ledger)
    assert row.num_seeds == 2  # 1 and 2
    np.testing.assert_allclose(row.metrics["plain"].better_mean, 0.35)
    # Too few seeds for a bootstrap.
    assert row.metrics["ours"].gain[:3] == (0, -1, 1)


def test_the_kept_epoch_counts(tmp_path):
    ledger = Ledger(tmp_path)
    for name, losses in (("a", [0.1, 0.9]), ("b", [0.5, 0.4])):
        for seed in range(2):
            metrics = {"val_log_loss": losses, "val_calibrated_log_loss": losses}
            run = {"pipeline": name, "seed": seed, "status": "finished", "epochs": [0, 1]}
            ledger.append(run | {"metrics": metrics, "kept_epoch": 0 if name == "a" else None})
    row = only_row(ledger)
    assert row.better == "a"
    np.testing.assert_allclose(row.metrics["plain"].worse_mean, 0.4)


def test_pairs_without_two_common_seeds_are_left_out(runs, capsys):
    ledger, _ = runs
    record(ledger, "c", [0.4], [0.4])
    pair = [Pair("size", "a", "c"), Pair("size", "a", "unknown")]
    rows = pair_rows(ledger, pair, plain="val_log_loss", calibrated=CALIBRATED)
    assert rows == []
    pairs.print_table(rows)
    assert "train more seeds" in capsys.readouterr().out


def test_a_metric_that_the_runs_lack_is_an_error(runs):
    ledger, _ = runs
    with pytest.raises(ValueError, match="without \\['val_other'\\]"):
        pair_rows(ledger, [Pair("k", "a", "b")], plain="val_other", calibrated=CALIBRATED)
    with pytest.raises(ValueError, match="Choose another name"):
        pair_rows(ledger, [], plain="val_log_loss", calibrated={"plain": "val_log_loss"})


def cells(table):
    """The cells of each line of a Markdown table."""
    lines = table.split("\n")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_have_a_line_for_each_row(runs, capsys):
    ledger, values = runs
    rows = [only_row(ledger)]
    lines = cells(pairs.markdown_accuracies(rows, {PAIR: "60.0 → 70.0"}))
    assert len(lines) == 3
    assert {len(line) for line in lines} == {9}
    accuracy = 100 * loop_accuracy(values["b"][0], values["a"][0])
    assert lines[2][5].startswith(f"{accuracy:.1f} [")
    assert lines[2][-1] == "60.0 → 70.0"
    # Each pipeline of a kind once.
    lines = cells(pairs.markdown_losses([*rows, *rows]))
    assert [line[1] for line in lines[2:]] == ["b", "a"]
    ratio = np.std(values["b"][1], ddof=1) / np.std(values["b"][0], ddof=1)
    assert lines[2][-1] == f"{ratio:.2f}"
    pairs.print_table(rows)
    assert f"{accuracy:.1f} [" in capsys.readouterr().out
