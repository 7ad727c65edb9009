"""Daily stock prices as windows of past days and the target of the next day, month by month."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# The columns of a bar, all known at the close of its day.
COLUMNS = ("overnight", "intraday", "return", "range", "volume")
TARGETS = ("range", "volume", "return")
# Bars that a stock must have before the first test month: they standardise its columns.
MIN_BARS = 250


class Examples(NamedTuple):
    """Windows of past bars, and the target of the bar that follows each.

    Args:
        bars: Standardised columns of all bars, by stock, then date, shape `(num_bars, 5)`.
        last_bars: Number of the last bar of each window, shape `(num_examples,)`.
        targets: Target of each example, from the bar after its window.
        months: Month of that bar, counted from the first test month, which is 0.
        test_months: Names of the test months.
        num_stocks: Number of stocks that have windows.
        window: Number of bars in a window.
    """

    bars: NDArray[np.float32]
    last_bars: NDArray[np.intp]
    targets: NDArray[np.float32]
    months: NDArray[np.int32]
    test_months: tuple[str, ...]
    num_stocks: int
    window: int

    def windows(self, chosen: NDArray[np.intp]) -> NDArray[np.float32]:
        """The windows of some examples, shape `(len(chosen), window, 5)`."""
        steps = np.arange(1 - self.window, 1)
        return self.bars[self.last_bars[chosen, None] + steps]


def read_bars(folder: Path, num_stocks: int) -> pd.DataFrame:
    """The complete daily bars of the first stocks, by stock, then date."""
    bars = pd.read_csv(folder / "data.csv.xz").dropna()
    # This file has the year 2021 on the last 26 trading days, those of January and February 2018.
    bars["date"] = bars["date"].str.replace("^2021", "2018", regex=True)
    # A day without trades has no range.
    bars = bars[(bars["high"] > bars["low"]) & (bars["volume"] > 0)]
    stocks = sorted(bars["Name"].unique())[:num_stocks]
    return bars[bars["Name"].isin(stocks)].sort_values(["Name", "date"], ignore_index=True)


def make_examples(bars: pd.DataFrame, target: str, window: int, num_test_months: int) -> Examples:
    """Standardises the columns of each stock and makes its windows.

    Stocks with fewer than `MIN_BARS` bars before the first test month are left out.
    """
    names, month_numbers = np.unique(bars["date"].str[:7].to_numpy(str), return_inverse=True)
    if not 2 <= num_test_months < len(names):
        raise SystemExit(
            f"Pass --test-months from 2 to {len(names) - 1}: the table has {len(names)} months."
        )
    months = (month_numbers - (len(names) - num_test_months)).astype(np.int32)
    columns = bar_columns(bars)
    last_bars = []
    for rows in bars.groupby("Name").indices.values():
        # The first bar of a stock has no bar before it, hence no return.
        rows = rows[1:]
        past = columns[rows[months[rows] < 0]]
        if len(past) >= max(MIN_BARS, window):
            columns[rows] = (columns[rows] - past.mean(axis=0)) / past.std(axis=0)
            last_bars.append(rows[window - 1 : -1])
    if not last_bars:
        raise SystemExit(
            f"No stock has {max(MIN_BARS, window)} bars before {names[-num_test_months]}: pass "
            "fewer --test-months."
        )
    last = np.concatenate(last_bars)
    return Examples(
        bars=columns.astype(np.float32),
        last_bars=last,
        targets=columns[last + 1, COLUMNS.index(target)].astype(np.float32),
        months=months[last + 1],
        test_months=tuple(names[-num_test_months:].tolist()),
        num_stocks=len(last_bars),
        window=window,
    )


def bar_columns(bars: pd.DataFrame) -> NDArray[np.float64]:
    """The `COLUMNS` of each bar; returns are meaningless in the first bar of a stock."""
    start, high, low, close = (
        bars[name].to_numpy(float) for name in ("open", "high", "low", "close")
    )
    previous_close = np.roll(close, 1)
    values = {
        "overnight": np.log(start / previous_close),
        "intraday": np.log(close / start),
        "return": np.log(close / previous_close),
        "range": np.log(np.log(high / low)),
        "volume": np.log(bars["volume"].to_numpy(float)),
    }
    return np.stack([values[name] for name in COLUMNS], axis=1)


def training_rounds(
    months: NDArray[np.int32], retrain_every: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The examples to train on, and those to predict afterwards, for each round.

    The first round trains on all months before the test months. Each later one trains on the months
    that the round before has predicted.
    """
    if retrain_every < 1:
        raise SystemExit("Pass --retrain-every of at least 1 month.")
    train = np.flatnonzero(months < 0)
    for first in range(0, int(months.max()) + 1, retrain_every):
        predicted = np.flatnonzero((first <= months) & (months < first + retrain_every))
        yield train, predicted
        train = predicted
