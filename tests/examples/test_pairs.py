"""Accuracies and intervals of pairs of pipelines in a ledger, against loops in NumPy."""

import json

import block_losses
import numpy as np
import pairs
import pytest
from pairs import Pair, gain, pair_rows

from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow

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


def judged_accuracy(values, metric):
    """The mean over both halves of the seeds; in both, the other half decides for b."""
    halves = [slice(0, None, 2), slice(1, None, 2)]
    return np.mean([loop_accuracy(values["b"][metric][h], values["a"][metric][h]) for h in halves])


def test_accuracies_are_those_of_a_loop(runs):
    ledger, values = runs
    row = only_row(ledger)
    assert [(half.better, half.worse) for half in row.judged] == [("b", "a")] * 2
    assert [half.seeds for half in row.judged] == [tuple(range(0, 24, 2)), tuple(range(1, 24, 2))]
    for k, name in enumerate(("plain", "ours")):
        np.testing.assert_allclose(row.accuracies[name], judged_accuracy(values, k))
    effect = gain([row], "ours")
    np.testing.assert_allclose(effect.value, row.accuracies["ours"] - row.accuracies["plain"])
    assert effect.low < effect.value < effect.high


def test_the_metric_is_not_judged_by_the_runs_that_decide(tmp_path):
    # Noise alone: the sample's better pipeline looks more than half accurate on its own runs.
    rng = np.random.default_rng(0)
    on_deciding_runs, judged = [], []
    for _ in range(150):
        values = {name: rng.normal(size=12) for name in "ab"}
        better, worse = sorted("ab", key=lambda name: values[name].mean())
        on_deciding_runs.append(loop_accuracy(values[better], values[worse]))
        rows = {name: {s: np.full((1, 2), v) for s, v in enumerate(values[name])} for name in "ab"}
        row = pairs._pair_row(Pair("k", "a", "b"), rows, ["plain"])
        if row.judged:
            judged.append(row.accuracies["plain"])
    assert np.mean(on_deciding_runs) > 0.58
    assert len(judged) > 8
    assert abs(np.mean(judged) - 0.5) < 3 * np.std(judged) / np.sqrt(len(judged))


def test_losses_by_block_add_the_noise_of_the_rows(runs):
    ledger, values = runs
    alone = gain([only_row(ledger)], "ours")
    rng = np.random.default_rng(2)
    rows = 0.02 * rng.normal(size=20)
    lines = []
    for name, pipeline_losses in values.items():
        for seed, losses in enumerate(np.transpose(pipeline_losses)):
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
