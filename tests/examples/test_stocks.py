"""The study of stock prices: what a model sees, how it is scored, and the whole of it, small."""

import itertools
import json
import sys

import numpy as np
import pandas as pd
import pytest
import stocks

from keras_calibration.metrics import CalibratedQuadraticLoss
from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow


def bars_of(name, dates, seed):
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(0.01 * rng.normal(size=len(dates))))
    start = close * np.exp(0.005 * rng.normal(size=len(dates)))
    high = np.maximum(start, close) * np.exp(0.01 * rng.random(len(dates)))
    low = np.minimum(start, close) * np.exp(-0.01 * rng.random(len(dates)))
    volume = rng.integers(1000, 100_000, len(dates))
    columns = {"open": start, "high": high, "low": low, "close": close, "volume": volume}
    return pd.DataFrame({"date": dates.strftime("%Y-%m-%d"), **columns, "Name": name})


@pytest.fixture(scope="module")
def bars():
    dates = pd.bdate_range("2016-09-01", "2018-02-07")
    # C is listed too late to be standardised.
    parts = [bars_of("A", dates, 0), bars_of("B", dates[40:], 1), bars_of("C", dates[200:], 2)]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture
def folder(bars, tmp_path):
    """The bars as a file with the wrong year, an incomplete bar and a day without trades."""
    table = bars[["date", "open", "high", "low", "close", "volume", "Name"]].copy()
    table["date"] = table["date"].str.replace("2018", "2021")
    table.loc[100, "open"] = np.nan
    table.loc[101, "low"] = table.loc[101, "high"]
    table.sample(frac=1.0, random_state=0).to_csv(tmp_path / "data.csv.xz", index=False)
    return tmp_path


def test_windows_and_targets_are_those_of_a_naive_loop(bars):
    window, first_test = 4, "2017-11"
    windows, targets, months = [], [], []
    for name in ("A", "B"):
        stock = bars[bars["Name"] == name].to_dict("records")
        days = []
        for before, bar in itertools.pairwise(stock):
            day = {
                "overnight": np.log(bar["open"] / before["close"]),
                "intraday": np.log(bar["close"] / bar["open"]),
                "return": np.log(bar["close"] / before["close"]),
                "range": np.log(np.log(bar["high"] / bar["low"])),
                "volume": np.log(bar["volume"]),
            }
            days.append([day[key] for key in stocks.COLUMNS])
        past = [day for day, bar in zip(days, stock[1:], strict=True) if bar["date"] < first_test]
        days = (np.array(days) - np.mean(past, axis=0)) / np.std(past, axis=0)
        for day_number in range(window, len(days)):
            rows = days[day_number - window : day_number + 1]
            windows.append(rows[:-1])
            targets.append(rows[-1])
            year, month = map(int, stock[day_number + 1]["date"].split("-")[:2])
            months.append(12 * (year - 2017) + month - 11)
    for target in ("range", "volume", "return"):
        examples = stocks.make_examples(bars, target, window, num_test_months=4)
        assert examples.test_months == ("2017-11", "2017-12", "2018-01", "2018-02")
        example_windows = examples.windows(np.arange(len(examples.targets)))
        np.testing.assert_allclose(example_windows, windows, rtol=1e-4, atol=1e-5)
        expected = np.array(targets)[:, stocks.COLUMNS.index(target)]
        np.testing.assert_allclose(examples.targets, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(examples.months, months)


def test_losses_are_those_of_numpy():
    rng = np.random.default_rng(0)
    months = rng.integers(0, 4, 1000).astype(np.int32)
    targets, predictions = rng.normal(size=(2, 1000)).astype(np.float32)
    targets += 0.3 * months
    blocks = stocks.score(targets, predictions, months)
    losses = {name: values.mean() for name, values in blocks.items()}
    residuals = np.float64(targets) - predictions
    np.testing.assert_allclose(losses["quadratic_loss"], np.mean(residuals**2))
    corrected = [
        residuals[months == month] - residuals[months == month - 1].mean() for month in (1, 2, 3)
    ]
    rolling = np.mean(np.concatenate(corrected) ** 2)
    np.testing.assert_allclose(losses["calibrated_quadratic_loss"], rolling)
    metric = CalibratedQuadraticLoss()
    metric.update_state(targets, predictions)
    np.testing.assert_allclose(losses["cross_fitted_quadratic_loss"], float(metric.result()))
    # By month: a share of the sum of all rows.
    second = 4 * (residuals[months == 1] ** 2).sum() / 1000
    np.testing.assert_allclose(blocks["quadratic_loss"][1], second)
    third = 4 * (corrected[1] ** 2).sum() / np.count_nonzero(months > 0)
    np.testing.assert_allclose(blocks["calibrated_quadratic_loss"][2], third)
    assert blocks["calibrated_quadratic_loss"][0] == 0


def test_the_whole_study_and_its_continuation(folder, monkeypatch, capsys):
    arguments = ["stocks.py", "--data", str(folder), "--output", str(folder / "output")]
    arguments += ["--stocks", "3", "--test-months", "4", "--retrain-every", "2", "--window", "3"]
    arguments += ["--hidden-size", "2", "--batch-size", "128", "--pipelines", "base", "l2_5"]

    def run(*others):
        monkeypatch.setattr(sys, "argv", [*arguments, *others])
        stocks.main()
        return capsys.readouterr().out

    assert "2 stocks" in run("--seeds", "2")
    ledger = Ledger(folder / "output" / "stocks" / "range")
    runs = ledger.runs(status="finished")
    assert {(run["pipeline"], run["seed"]) for run in runs} == {
        (name, seed) for name in ("base", "l2_5") for seed in range(2)
    }
    assert {run["configuration"]["l2"] for run in runs} == {0.0, 0.015}
    losses = [run["metrics"]["quadratic_loss"][0] for run in runs]
    assert len(set(losses)) == 4
    assert 0.5 < np.mean(losses) < 2
    lines = (ledger.path / "block_losses.jsonl").read_text().splitlines()
    blocks = {(line["pipeline"], line["seed"]): line["losses"] for line in map(json.loads, lines)}
    for run_record in runs:
        values = blocks[run_record["pipeline"], run_record["seed"]]["calibrated_quadratic_loss"]
        assert len(values) == 4
        expected = run_record["metrics"]["calibrated_quadratic_loss"][0]
        np.testing.assert_allclose(np.mean(values), expected, atol=1e-6)
    assert "0 runs to train" in run("--seeds", "2")
    assert len(ledger) == 4
    # Two seeds cannot decide a pair; the losses are there.
    section = stocks.markdown(ledger)
    assert "No pair counts" in section
    assert section.count("\n| l2_5 ") == 1
    with pytest.raises(SystemExit, match="other settings"):
        run("--epochs", "2")
