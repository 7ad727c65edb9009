"""Accuracies and intervals of pairs of pipelines in a ledger, against loops in NumPy."""

import json

import block_losses
import numpy as np
import pytest
from pairs import Pair, gain, pair_rows

from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow

METRICS = {"plain": "val_log_loss", "ours": "val_calibrated_log_loss"}
HALVES = [slice(0, None, 2), slice(1, None, 2)]


def values_of(turned=False):
    """Losses of 24 seeds by pipeline, b's lower; turned, those of even seeds change places."""
    rng = np.random.default_rng(3)
    values = {
        name: [mean + 1e-2 * rng.normal(size=24), mean + 4e-3 * rng.normal(size=24)]
        for name, mean in (("a", 0.516), ("b", 0.5))
    }
    for first, second in zip(*values.values(), strict=True) if turned else ():
        first[HALVES[0]], second[HALVES[0]] = second[HALVES[0]].copy(), first[HALVES[0]].copy()
    return values


def row_of(ledger, values=None):
    """The row of the pair, after its runs are written."""
    for name, losses in (values or {}).items():
        for seed, (plain, ours) in enumerate(zip(*losses, strict=True)):
            run = {"pipeline": name, "seed": seed, "status": "finished", "epochs": [0]}
            metrics = {"val_log_loss": [plain], "val_calibrated_log_loss": [ours]}
            ledger.append(run | {"metrics": metrics})
    calibrated = {"ours": METRICS["ours"]}
    (row,) = pair_rows(ledger, [Pair("k", "a", "b")], plain=METRICS["plain"], calibrated=calibrated)
    return row


def accuracy(better, worse):
    """The share of pairs of runs with different seeds where `better` is lower."""
    return np.mean([x < y for i, x in enumerate(better) for j, y in enumerate(worse) if i != j])


@pytest.mark.parametrize("turned", [False, True])
def test_accuracies_are_those_of_a_loop(turned, tmp_path):
    """On the runs of each half, whose order the other half decides."""
    values = values_of(turned)
    row = row_of(Ledger(tmp_path), values)
    decided = ["ba", "ab" if turned else "ba"]
    assert [half.better + half.worse for half in row.judged] == decided
    assert [half.seeds for half in row.judged] == [(*range(24)[half],) for half in HALVES]
    for k, name in enumerate(METRICS):
        shares = [
            accuracy(values[better][k][half], values[worse][k][half])
            for (better, worse), half in zip(decided, HALVES, strict=True)
        ]
        assert row.accuracies[name] == pytest.approx(np.mean(shares))
    effect = gain([row], "ours")
    assert effect.value == pytest.approx(row.accuracies["ours"] - row.accuracies["plain"])
    assert effect.low < effect.value < effect.high


def test_losses_by_block_add_the_noise_of_the_rows(tmp_path):
    ledger, values = Ledger(tmp_path), values_of()
    alone = gain([row_of(ledger, values)], "ours")
    # The held-out rows favour b by chance in some blocks, under all seeds.
    rows = 0.02 * np.random.default_rng(2).normal(size=20)
    effects = {"a": rows - rows.mean(), "b": np.zeros(20)}
    lines = []
    for name, losses in values.items():
        for seed, by_metric in enumerate(zip(*losses, strict=True)):
            blocks = [(value + effects[name]).tolist() for value in by_metric]
            line = {"losses": dict(zip(METRICS.values(), blocks, strict=True))}
            lines.append(json.dumps({"pipeline": name, "seed": seed, **line}))
    (ledger.path / block_losses.FILE).write_text("\n".join(lines))
    with_rows = gain([row_of(ledger)], "ours")
    assert with_rows.value == pytest.approx(alone.value)
    assert with_rows.high - with_rows.low > alone.high - alone.low
