"""Accuracies and intervals of pairs of pipelines in a ledger, against loops in NumPy."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[2] / "examples" / "calibrated_metric"))
import block_losses
import pairs
from pairs import Pair, gain, pair_rows

pytestmark = pytest.mark.slow

CALIBRATED = {"ours": "val_calibrated_log_loss"}
METRICS = ("val_log_loss", *CALIBRATED.values())
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
        name: (mean + 1e-2 * rng.normal(size=24), mean + 4e-3 * rng.normal(size=24))
        for name, mean in (("a", 0.516), ("b", 0.5))
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
        assert (row.better, row.worse, row.num_seeds) == ("b", "a", 24)
        gap = values["a"][0].mean() - values["b"][0].mean()
        np.testing.assert_allclose(row.difference.value, gap)
        assert row.difference.low < gap < row.difference.high


def judged_accuracy(values, metric):
    """The mean over both halves of the seeds; in both, the other half decides for b."""
    halves = [slice(0, None, 2), slice(1, None, 2)]
    return np.mean([loop_accuracy(values["b"][metric][h], values["a"][metric][h]) for h in halves])


def test_means_deviations_and_accuracies_are_those_of_a_loop(runs):
    ledger, values = runs
    row = only_row(ledger)
    assert [(half.better, half.worse) for half in row.judged] == [("b", "a")] * 2
    assert [half.seeds for half in row.judged] == [tuple(range(0, 24, 2)), tuple(range(1, 24, 2))]
    for k, name in enumerate(("plain", "ours")):
        better, worse = values["b"][k], values["a"][k]
        found = row.metrics[name]
        np.testing.assert_allclose(found.better_mean, better.mean())
        np.testing.assert_allclose(found.worse_mean, worse.mean())
        np.testing.assert_allclose(found.better_std, np.std(better, ddof=1))
        np.testing.assert_allclose(found.worse_std, np.std(worse, ddof=1))
        np.testing.assert_allclose(found.accuracy, judged_accuracy(values, k))
    found = gain([row], "ours")
    np.testing.assert_allclose(
        found.value, row.metrics["ours"].accuracy - row.metrics["plain"].accuracy
    )
    assert found.low < found.value < found.high


def test_another_loss_may_decide(tmp_path):
    rng = np.random.default_rng(4)
    ledger = Ledger(tmp_path)
    noise = 0.01 * rng.normal(size=(4, 40))
    # The bias of b makes its plain loss higher, and hides that it is better after calibration.
    record(ledger, "a", 0.52 + noise[0], 0.51 + noise[1])
    record(ledger, "b", 0.53 + noise[2], 0.50 + noise[3])
    for decided_by, better in (("plain", "a"), ("ours", "b")):
        (row,) = pair_rows(
            ledger,
            [PAIR],
            plain="val_log_loss",
            calibrated=CALIBRATED,
            decided_by=decided_by,
        )
        assert {half.better for half in row.judged} == {better}
        assert (row.metrics["ours"].accuracy > 0.5) == (better == "b")
        assert row.better == "a"  # by the plain loss, in either case


def test_a_half_that_does_not_know_which_is_better_decides_nothing(tmp_path):
    ledger = Ledger(tmp_path)
    noise = np.tile([0.0, 0.01, 0.02, 0.03], 6)
    even = np.arange(24) % 2 == 0
    # Even seeds are far apart, but overlap; odd ones are the same.
    chance = 1e-6 * np.array([1, 1, -1, -1] * 6)
    record(ledger, "a", noise + 0.012 * even + chance, noise)
    record(ledger, "b", noise, noise)
    (half,) = only_row(ledger).judged
    assert (half.better, half.worse) == ("b", "a")
    assert half.seeds == tuple(range(1, 24, 2))  # the odd ones are judged


def test_the_metric_is_not_judged_by_the_runs_that_decide(tmp_path):
    # Noise alone: the sample's better pipeline looks more than half accurate on its own runs.
    rng = np.random.default_rng(0)
    own, judged = [], []
    for _ in range(150):
        values = {name: rng.normal(size=12) for name in "ab"}
        better, worse = sorted("ab", key=lambda name: values[name].mean())
        own.append(loop_accuracy(values[better], values[worse]))
        rows = {name: {s: np.full((1, 2), v) for s, v in enumerate(values[name])} for name in "ab"}
        found = pairs._pair_row(Pair("k", "a", "b"), rows, ["plain"])
        if found.judged:
            judged.append(found.metrics["plain"].accuracy)
    assert np.mean(own) > 0.58
    assert len(judged) > 8
    assert abs(np.mean(judged) - 0.5) < 3 * np.std(judged) / np.sqrt(len(judged))


def test_pairs_that_cannot_be_missed_do_not_count(tmp_path):
    ledger = Ledger(tmp_path)
    noise = np.linspace(0, 0.01, 24)
    record(ledger, "a", 0.6 + noise, 0.6 + noise)
    record(ledger, "b", 0.5 + noise, 0.5 + noise)
    row = only_row(ledger)
    assert row.judged == ()
    assert np.isnan(row.metrics["plain"].accuracy)
    assert gain([row], "ours") is None
    assert cells(pairs.markdown_accuracies([row]))[2][5:] == ["–"] * 3


def test_losses_by_block_add_the_noise_of_the_rows(runs):
    ledger, values = runs
    alone = gain([only_row(ledger)], "ours")
    rng = np.random.default_rng(2)
    rows = 0.02 * rng.normal(size=20)
    lines = []
    for name, found in values.items():
        for seed, losses in enumerate(np.transpose(found)):
            # The held-out rows favour b by chance in some blocks, under all seeds.
            effects = rows - rows.mean() if name == "a" else np.zeros(20)
            blocks = {
                metric: (value + effects).tolist()
                for metric, value in zip(
                    ("val_log_loss", *CALIBRATED.values()), losses, strict=True
                )
            }
            lines.append(json.dumps({"pipeline": name, "seed": seed, "losses": blocks}))
    (ledger.path / block_losses.FILE).write_text("\n".join(lines))
    row = only_row(ledger)
    with_rows = gain([row], "ours")
    np.testing.assert_allclose(with_rows.value, alone.value)
    assert with_rows.high - with_rows.low > alone.high - alone.low


def test_only_common_finished_seeds_count_and_the_latest_run_of_each(tmp_path):
    ledger = Ledger(tmp_path)
    record(ledger, "a", [9.0, 0.3, 0.4], [9.0, 0.3, 0.4])
    record(ledger, "a", [0.2], [0.2])
    record(ledger, "b", [0.5, 0.6, 0.7], [0.5, 0.6, 0.7], first_seed=1)
    record(ledger, "b", [0.1], [0.1], status="diverged")
    row = only_row(ledger)
    assert row.num_seeds == 2  # 1 and 2
    np.testing.assert_allclose(row.metrics["plain"].better_mean, 0.35)
    assert row.judged == ()  # too few seeds


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
    accuracy = 100 * judged_accuracy(values, 0)
    assert lines[2][5] == f"{accuracy:.1f}"
    assert lines[2][-1] == "other way round"
    turned = Pair("size", "b", "a")
    lines = cells(pairs.markdown_accuracies([only_row(ledger, turned)], {turned: "60.0 → 70.0"}))
    assert lines[2][-1] == "60.0 → 70.0"
    # Each pipeline of a kind once.
    lines = cells(pairs.markdown_losses([*rows, *rows]))
    assert [line[1] for line in lines[2:]] == ["b", "a"]
    ratio = np.std(values["b"][1], ddof=1) / np.std(values["b"][0], ddof=1)
    assert lines[2][-2] == f"{ratio:.2f}"
    share = np.cov(values["b"][0], values["b"][0] - values["b"][1]) / values["b"][0].var(ddof=1)
    assert lines[2][-1] == f"{100 * share[0, 1]:.0f}"
    pairs.print_table(rows)
    assert f"{accuracy:.1f}" in capsys.readouterr().out
