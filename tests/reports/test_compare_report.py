"""Every number that `compare` prints, computed from the records with NumPy and SciPy alone."""

import re

import numpy as np
import pytest
from scipy import optimize, stats

from keras_calibration.seeds import Ledger, compare
from printed import check_numbers
from run_references import (
    Looked,
    bias_part,
    surviving_part,
    wins_of_independent_runs,
    wins_of_shared_seeds,
)

LOSS, CALIBRATED, AUC = "val_loss", "val_calibrated_log_loss", "val_auc"
RANKING = np.array([-1.9, 0.3, 1.7, -0.2, 0.9, -1.1, 0.45, 0.1, -0.7, 1.3, -0.55, 0.6])
NOISE_A = np.array([0.2, -1.3, 0.5, 1.1, -0.6, 0.8, -0.1, -0.9, 1.4, 0.3, -0.4, 0.7])
NOISE_B = np.array([-0.8, 0.4, 1.2, -0.3, 0.95, -1.6, 0.15, 0.6, -0.2, 0.5, -1.0, 1.75])


def metrics(noise, shift=0.0, gain=0.0):
    """Held-out metrics of runs: the plain loss has twice the noise of the calibrated loss."""
    num = len(noise)
    calibrated = 0.4 + shift + 1e-3 * RANKING[:num] + 4e-4 * noise
    gains = 2e-3 + gain + 9e-4 * np.abs(noise[::-1] + 0.3)
    auc = 0.731 - 0.7 * shift - 2e-3 * RANKING[:num] + 6e-4 * noise[::-1]
    return {LOSS: calibrated + gains, CALIBRATED: calibrated, AUC: auc}


def ledger_of(folder, **runs):
    """A ledger of pipeline → (seeds, metric → value of each run)."""
    ledger = Ledger(folder / "runs")
    for pipeline, (seeds, values) in runs.items():
        for number, seed in enumerate(seeds):
            series = {name: [float(column[number])] for name, column in values.items()}
            record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            ledger.append({**record, "metrics": series})
    return ledger


def row_of(a, b, paired, level, maximize=False, p=True):
    """The figures of one row of the table, in the order of its columns."""
    look, sign = Looked(a, b, paired, level), -1 if maximize else 1
    wins = (wins_of_shared_seeds if paired else wins_of_independent_runs)(a, b, level, sign)
    spreads = [a.mean(), a.std(ddof=1), b.mean(), b.std(ddof=1)]
    figures = [*spreads, look.value, *look.ends, *(100 * np.array(wins))]
    return figures + [look.p] * p


def reason_of(a, b, paired, shown):
    """The figures beside the verdict: the difference, its interval and its p-value."""
    look = Looked(a, b, paired, shown)
    return [look.value, *look.ends, look.p]


def expected_of(a, b, paired, shown, level, bias=False):
    """The numbers from the table to the figures below it; A and B are metric → values of runs."""
    look = Looked(a[CALIBRATED], b[CALIBRATED], paired, shown)
    gain = Looked(*(side[LOSS] - side[CALIBRATED] for side in (a, b)), paired, shown)
    pairs = [[side[name] for side in (a, b)] for name in (LOSS, CALIBRATED)]
    return [
        *(x for n in (CALIBRATED, LOSS, AUC) for x in row_of(a[n], b[n], paired, shown, n == AUC)),
        stats.t.cdf(-look.value / look.error, look.degrees),
        *(look.detectable(level), 0.8),
        *(gain.value, *gain.ends),
        *surviving_part(*pairs, paired, shown),
        *(bias_part(*pairs, shown) if bias else []),
        *(0.8, *(Looked(*pair, paired).seeds(level) for pair in pairs)),
    ]


def part_of(values, num):
    return {name: column[:num] for name, column in values.items()}


@pytest.mark.parametrize("unit", [1.0, 1e6, 3e-3])
def test_paired_runs_with_both_losses(tmp_path, unit):
    a, b, seeds = metrics(NOISE_A), metrics(NOISE_B, -6e-4, -2e-4), range(12)
    # Of any size, as of sums of money or of rates per day.
    a, b = ({name: unit * column for name, column in side.items()} for side in (a, b))
    comparison = compare(ledger_of(tmp_path, deepfm=(seeds, a), dcn=(seeds, b)), "deepfm", "dcn")
    reason = [*reason_of(a[CALIBRATED], b[CALIBRATED], True, 0.95), 0.05 / 3, 0.05, 3]
    figures = expected_of(a, b, True, 0.95, 1 - 0.05 / 3, bias=True)
    check_numbers(str(comparison), [reason, 12, 12, 12, 0.95, *figures])
    assert str(comparison.verdict) == "B better"
    # Ordinary sizes have no exponent; small ones share that of a figure and its interval.
    assert not re.search(r"\de[-+]?\d", str(comparison))


def test_a_gain_that_is_calibration_only(tmp_path):
    a, b = part_of(metrics(NOISE_A), 9), part_of(metrics(NOISE_B, -1.2e-3, -1.7e-3), 7)
    ledger = ledger_of(tmp_path, deepfm=(range(9), a), dcn=(range(100, 107), b))
    comparison = compare(ledger, "deepfm", "dcn", num_looks=4)
    level = 1 - 0.05 / 4
    reasons = [reason_of(a[name], b[name], False, level) for name in (CALIBRATED, LOSS)]
    figures = expected_of(a, b, False, level, level)
    check_numbers(str(comparison), [reasons, 0.0125, 0.05, 4, 9, 7, level, *figures])
    assert "calibration only" in str(comparison.verdict)


def test_the_plan_counts_the_seeds_to_train(tmp_path):
    a, b = part_of(metrics(NOISE_A), 9), part_of(metrics(NOISE_B, -3e-4), 7)
    a, b = ({CALIBRATED: side[CALIBRATED]} for side in (a, b))
    ledger = ledger_of(tmp_path, deepfm=(range(9), a), dcn=(range(100, 107), b))
    for delta in (None, 1.3e-3):
        look = Looked(a[CALIBRATED], b[CALIBRATED], False, 0.9)
        better = stats.t.cdf(-look.value / look.error, look.degrees)
        figures = [*row_of(a[CALIBRATED], b[CALIBRATED], False, 0.9), better]
        figures += [look.detectable(0.9), 0.8]
        comparison = compare(ledger, "deepfm", "dcn", delta=delta, num_looks=1, confidence=0.9)
        reason = [look.seeds(0.9, delta) - 7, look.value, *look.ends, look.p, 0.1]
        wide = [] if delta is None else [0.9, *look.ends, delta]
        check_numbers(str(comparison), [reason, wide, 9, 7, 0.9, *figures])


@pytest.mark.parametrize("paired", [True, False])
def test_any_number_of_looks(tmp_path, paired):
    a, b = (values[CALIBRATED][:8] for values in (metrics(NOISE_A), metrics(NOISE_B, -1.2e-3)))
    seeds = range(8) if paired else range(100, 108)
    ledger = ledger_of(tmp_path, deepfm=(range(8), {CALIBRATED: a}), dcn=(seeds, {CALIBRATED: b}))

    def evidence(shift):
        """log e₈ of the differences less a shift, as the docstring defines it, with g = 1."""
        d = b - a - shift
        return -np.log(9) / 2 - 4 * np.log(1 - 8 / 9 * d.sum() ** 2 / (8 * np.sum(d**2)))

    mean, look = (b - a).mean(), Looked(a, b, paired)
    ends = [
        optimize.brentq(lambda x: evidence(x) - np.log(1 / 0.05), mean, mean + side)
        for side in (-1, 1)
    ]
    wins = (wins_of_shared_seeds if paired else wins_of_independent_runs)(a, b, 0.95)
    spreads = [a.mean(), a.std(ddof=1), b.mean(), b.std(ddof=1)]
    detectable = ends[1] - mean + stats.t.ppf(0.8, look.degrees) * look.error
    better = stats.t.cdf(-mean / look.error, look.degrees)
    p = min(1, np.exp(-evidence(0)))
    figures = [*spreads, mean, *ends, *(100 * np.array(wins)), p]
    comparison = compare(ledger, "deepfm", "dcn", num_looks=None)
    shared = [8] * paired
    heading = [mean, *ends, p, 0.05, 8, 8, *shared, 0.95]
    check_numbers(str(comparison), [*heading, *figures, better, detectable, 0.8])


def test_the_noise_of_other_runs_judges_a_single_pair(tmp_path):
    values = {name: {CALIBRATED: metrics(NOISE_A)[CALIBRATED][part]} for name, part in PARTS}
    seeds = {name: np.arange(len(NOISE_A))[part].tolist() for name, part in PARTS}
    comparison = compare(
        ledger_of(tmp_path, **{name: (seeds[name], values[name]) for name in values}),
        *("deepfm", "dcn"),
    )
    a, b, *others = (column[CALIBRATED] for column in values.values())
    squares = sum(np.sum((x - x.mean()) ** 2) for x in others)
    degrees = sum(map(len, others)) - len(others)
    noise = np.sqrt(squares / degrees)
    change, error = b[0] - a[0], noise * np.sqrt(2)
    t = {p: stats.t.ppf(p, degrees) for p in (0.8, 1 - 0.05 / 6)}
    look = Looked(*others, False)
    look.value, look.variance = change, 2 * noise**2
    figures = [*a, *b, *(100 * np.array(wins_of_independent_runs(a, b, 0.95)))]
    figures += [stats.t.cdf(-change / error, degrees), noise, sum(map(len, others)), len(others)]
    figures += [sum(t.values()) * error, 0.8]
    check_numbers(str(comparison), [look.seeds(1 - 0.05 / 3) - 1, 1, 1, *figures])


PARTS = {"deepfm": slice(0, 1), "dcn": slice(1, 2), "fm": slice(2, 7), "lr": slice(7, 12)}.items()


def test_excluded_runs_are_counted(tmp_path):
    a, b = (metrics(noise)[LOSS][:4] for noise in (NOISE_A, NOISE_B))
    ledger = ledger_of(tmp_path, deepfm=(range(4), {LOSS: a}), dcn=(range(4), {LOSS: b}))
    run = {"pipeline": "dcn", "seed": 7, "epochs": [0], "metrics": {LOSS: [0.5]}}
    for number, kind in enumerate(["diverged"] * 3 + ["started"] * 2):
        ledger.append({**run, "seed": 7 + number, "status": kind})
    ledger.append({**run, "seed": 0, "status": "finished", "metrics": {LOSS: [0.4125]}})
    b[0] = 0.4125
    comparison = compare(ledger, "deepfm", "dcn", metric="loss", num_looks=1)
    look = Looked(a, b, True)
    figures = [*row_of(a, b, True, 0.95, p=False)]
    figures += [stats.t.cdf(-look.value / look.error, 3), look.detectable(0.95), 0.8]
    # Four pairs of the six. Excluded: diverged, never finished, repeated.
    verdict = [4, 6, 2, look.value, *look.ends]
    check_numbers(str(comparison), [*verdict, 4, 4, 4, 0.95, *figures, 3, 2, 1])


@pytest.mark.parametrize("spread", [0.2, 3.0])
def test_that_a_gain_is_mostly_calibration_is_told_with_evidence_alone(tmp_path, spread):
    """The whole interval of the surviving share must be below one half, not the estimate alone."""
    a, b = metrics(NOISE_A), metrics(NOISE_A, -5e-4)
    b[CALIBRATED] = a[CALIBRATED] - 5e-4 + spread * 1e-3 * (NOISE_B - NOISE_B.mean())
    b[LOSS] = a[LOSS] - 3e-3 + 2e-4 * (NOISE_B - NOISE_B.mean())
    ledger = ledger_of(tmp_path, deepfm=(range(12), a), dcn=(range(12), b))
    comparison = compare(ledger, "deepfm", "dcn", metric="loss")
    share, _, high = surviving_part(
        *([side[name] for side in (a, b)] for name in (LOSS, CALIBRATED)), True, 0.95
    )
    # The loss differs beyond chance, and the estimate alone would say so in both cases.
    assert str(comparison.verdict) == "B better"
    assert share < 0.5
    assert (high <= 0.5) == (spread < 1)
    told = any("mostly calibration" in note for note in comparison.notes)
    assert told == (high <= 0.5)
