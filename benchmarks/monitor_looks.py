"""A monitor that is looked at every day: `./dev run python benchmarks/monitor_looks.py`.

Logs with 500 expected positives a day, of rows with p = 0.01, 0.05 and 0.2, equally divided among
the values of a field; labels are drawn with the true probabilities. Every day, four monitors look
at the log so far, with a tolerance of 0:

- shifts: what `monitor` checks, with `false_alarms_per_year=0.01`: the rates of the day, shifts of
  the whole log and of each value. Its Field-RCE is looked at every four weeks only, to save time;
  the losses of periods are left out (`monitor_levels.py`);
- bounds: the checks that `monitor` had before, with a confidence of 99.9 % a call: bounds on the
  rates of all rows, of each day and of each value, of the whole log so far;
- new day: a z-test of the newest day at 99.9 %;
- three sigma: the day's mean of label - prediction within three standard deviations of its mean in
  the first 30 days. This is what NannyML does by default: the alerts are those of its
  `SummaryStatsAvgCalculator` on that column (version 0.13.1, compared once, on 365 days).

Printed are the false alarms: logs with an alarm, over the years until then; and the days from a
shift on day 200 to the alarm, the median and the share found within a year, of logs without an
alarm before.
"""

import argparse
import bisect
import functools
import time
from collections.abc import Iterator

import numpy as np
from scipy.special import betainc, logsumexp

from calibration_records._limits import FIELD_RCE_EPSILON
from calibration_records.monitoring.bounds import rate_factors
from calibration_records.monitoring.field_error_bound import field_rce, field_rce_bound
from calibration_records.monitoring.shifts import SHIFTS, find_shifts, log_ratios
from calibration_records.monitoring.sums import Sums

P = np.array([0.01, 0.05, 0.2])
# Rows of each p and value a day.
ROWS = {1: (16_667, 3_333, 833), 50: (333, 67, 17), 1000: (17, 3, 1)}
MONITORS = ("shifts", "bounds", "new day", "three sigma")
YEAR, DAY_OF_SHIFT, REFERENCE, WEEK = 365.25, 200, 30, 7
ALARMS, CONFIDENCE = 0.01, 0.999


def day_sums(values: int, days: float = 1) -> dict[str, float]:
    """The sums of a value in some days without positives."""
    rows = days * np.array(ROWS[values], float)
    return {
        "rows": rows.sum(),
        "positives": 0.0,
        "predicted": rows @ P,
        "predicted_squares": rows @ P**2,
    }


def groups(sums: dict[str, float], count: int) -> Sums:
    """Groups of the same sums."""
    return Sums({name: np.full(count, value) for name, value in sums.items()})


def days(
    values: int, logs: int, num_days: int, factor: float, shifted: int, seed: list[int]
) -> Iterator:
    """The positives of each log and value, day by day; the first values shift by a factor."""
    generator = np.random.default_rng(seed)
    for day in range(num_days):
        factors = np.ones((values, 1))
        if day >= DAY_OF_SHIFT:
            factors[:shifted] = factor
        yield generator.binomial(ROWS[values], factors * P, (logs, values, 3)).sum(axis=2)


class Evidence:
    """The evidence for shifts of many sequences of the same predictions, day by day."""

    def __init__(self, sums: dict[str, float], shape: tuple[int, ...], block: int) -> None:
        self.expected = log_ratios(groups(sums, 1), 0.0)[0].astype(np.float32)
        self.block, self.years = block, np.float32(np.log(block / YEAR))
        self.closed = np.full((*shape, len(SHIFTS)), -np.inf, np.float32)
        self.ratio = np.zeros((*shape, len(SHIFTS)), np.float32)

    def add(self, day: int, positives: np.ndarray, least: float = -np.inf) -> np.ndarray:
        """Logarithm of the years of evidence after a day; -inf where it is below `least`."""
        if day % self.block == 0:
            self.closed = np.logaddexp(self.closed + self.ratio, self.years)
            self.ratio[...] = 0
        self.ratio += positives[..., None] * SHIFTS.astype(np.float32) + self.expected
        total = self.closed + self.ratio
        is_likely = total.max(axis=-1) >= least
        found = np.full(is_likely.shape, -np.inf)
        found[is_likely] = logsumexp(total[is_likely], axis=-1) - np.log(len(SHIFTS))
        return found


@functools.lru_cache(maxsize=100)
def ends(predicted: float, squares: float, risk: float) -> tuple[int, int]:
    """Numbers of positives that are just too few and too many for a rate of 1."""
    share = squares / predicted
    trials, tail = predicted / share, risk / 2
    top = int(predicted + 15 * np.sqrt(predicted) + 40)

    def is_enough(k: int) -> bool:
        return betainc(k + 1, max(trials - k, 1e-9), share) < 1 - tail

    def is_too_many(k: int) -> bool:
        return betainc(max(k, 1e-9), max(trials - k, 0.0) + 1, share) < tail

    low = bisect.bisect_left(range(top), True, key=is_enough)
    high = bisect.bisect_left(range(top), True, key=is_too_many)
    return low - 1, high


def is_off_counts(positives: np.ndarray, sums: dict[str, float], risk: float) -> np.ndarray:
    """Whether the interval of a rate leaves out 1, see `rate_factors`."""
    few, many = ends(sums["predicted"], sums["predicted_squares"], risk)
    return (positives <= few) | (positives >= many)


class Monitors:
    """The four monitors of many logs; `add` gives which alarm after a day."""

    def __init__(self, values: int, logs: int, check: bool = False) -> None:
        self.values, self.one, self.all = values, day_sums(values), day_sums(values, values)
        self.deviation = np.sqrt(self.all["predicted"] - self.all["predicted_squares"])
        self.kinds = 3 if values == 1 else 5
        self.whole = Evidence(self.all, (logs,), 1)
        self.parts = Evidence(self.one, (logs, values), WEEK) if values > 1 else None
        self.total = np.zeros((logs, values))
        self.per_day: list[np.ndarray] = []

    def add(self, day: int, positives: np.ndarray) -> list[np.ndarray]:
        """Of each monitor, which logs alarm."""
        self.total += positives
        newest = positives.sum(axis=1)
        self.per_day.append(newest)
        return [
            self._shifts(day, positives, newest),
            self._bounds(day, newest),
            np.abs(newest - self.all["predicted"]) > 3.2905 * self.deviation,
            self._three_sigma(day, newest),
        ]

    def _shifts(self, day: int, positives: np.ndarray, newest: np.ndarray) -> np.ndarray:
        risk = ALARMS / self.kinds
        is_off = is_off_counts(newest, self.all, risk / YEAR)
        is_off = is_off | (self.whole.add(day, newest) >= -np.log(risk))
        if self.parts is not None:
            least = np.log(self.values / risk)
            is_off |= self.parts.add(day, positives, least).max(axis=1) >= least
            if day % 28 == 27:
                is_off |= self._error(day, risk / YEAR)
        return is_off

    def _error(self, day: int, risk: float) -> np.ndarray:
        sums = groups(day_sums(self.values, day + 1), self.values)
        rows = sums["rows"]
        bound = field_rce_bound(sums, risk)[-1]
        away = np.abs(self.total - sums["predicted"])
        terms = away * rows / (self.total + FIELD_RCE_EPSILON * rows)
        errors = terms.sum(axis=1) / rows.sum()
        np.testing.assert_allclose(errors[0], field_rce(Sums(sums, positives=self.total[0])))
        return errors > bound

    def _bounds(self, day: int, newest: np.ndarray) -> np.ndarray:
        risk = (1 - CONFIDENCE) / self.kinds
        # Bounds of earlier days widen as days are added: the newest is the first to be off.
        is_off = is_off_counts(newest, self.all, risk / (day + 1))
        is_off = is_off | is_off_counts(self.total.sum(axis=1), self._until(day, self.values), risk)
        if self.values > 1:
            each = is_off_counts(self.total, self._until(day), risk / self.values)
            is_off |= each.any(axis=1)
        return is_off

    def _until(self, day: int, values: int = 1) -> dict[str, float]:
        """The sums of some values until a day."""
        return day_sums(self.values, values * (day + 1))

    def _three_sigma(self, day: int, newest: np.ndarray) -> np.ndarray:
        if day < REFERENCE:
            return np.zeros(len(newest), bool)
        reference = np.array(self.per_day[:REFERENCE])
        return np.abs(newest - reference.mean(axis=0)) > 3 * reference.std(axis=0)


def first_alarms(
    values: int, logs: int, num_days: int, factor: float = 1.0, shifted: int = 0, *, seed: list[int]
) -> np.ndarray:
    """Day of the first alarm of each monitor and log (monitors, logs); `num_days` without one."""
    monitors = Monitors(values, logs)
    first = np.full((len(MONITORS), logs), num_days)
    for day, positives in enumerate(days(values, logs, num_days, factor, shifted, seed)):
        for place, is_off in enumerate(monitors.add(day, positives)):
            first[place] = np.where(is_off, np.minimum(first[place], day), first[place])
    return first


def check() -> None:
    """Whether the evidence above is that of the monitor."""
    one, rng = day_sums(50), np.random.default_rng(0)
    for sums in (one, day_sums(1000), day_sums(50, 1000)):
        counts = np.arange(int(2 * sums["predicted"]) + 60)
        same = groups(sums, len(counts))
        low, high = rate_factors(counts, same["predicted"], same["predicted_squares"], 0.999)
        np.testing.assert_array_equal(is_off_counts(counts, sums, 0.001), (low > 1) | (high < 1))
    positives = rng.poisson(10, (40, 2))
    for block in (1, WEEK):
        evidence = Evidence(one, (2,), block)
        received = [evidence.add(day, positives[day]) for day in range(40)][-1]
        blocks = np.arange(40) // block
        for value in range(2):
            sums = groups(one, 40)
            sums["positives"] = positives[:, value]
            sums = sums.added(np.unique(blocks, return_index=True)[1])
            number = np.zeros(sums.num_groups, int)
            found = find_shifts(sums, number, np.arange(len(number)), block / YEAR, 0.0)
            np.testing.assert_allclose(received[value], found.log_years[0], atol=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--years", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--values", type=int, nargs="*", default=[1, 50, 1000])
    parser.add_argument("--shifts", type=float, nargs="*", default=[1.03, 1.1, 1.3])
    options = parser.parse_args()
    check()
    heads = [f"{name} |" for name in MONITORS]
    print("| false alarms a year: values, years of daily looks |", *heads)
    print("| --- |" + " ---: |" * len(MONITORS))
    for values in options.values:
        start = time.time()
        num_days = round(options.years * YEAR)
        first = first_alarms(values, options.logs, num_days, seed=[options.seed, values])
        alarms = (first < num_days).sum(axis=1)
        years = np.minimum(first + 1, num_days).sum(axis=1) / YEAR
        cells = [f"{a / y:.2%} ({a} in {y:,.0f}) |" for a, y in zip(alarms, years, strict=True)]
        print(f"| {values:,}, {options.logs * options.years:,} |", *cells, flush=True)
        print(f"{time.time() - start:.0f} s", flush=True)
    print("\n| days to the alarm: share found in a year, of logs without an alarm before |", *heads)
    print("| --- |" + " ---: |" * len(MONITORS))
    for values, shifted in ((1, 1), (50, 1)):
        for factor in options.shifts:
            end, seed = DAY_OF_SHIFT + 365, [options.seed, values, round(factor * 100)]
            first = first_alarms(values, options.logs, end, factor, shifted, seed=seed)
            cells = []
            for each in first:
                late = each[each >= DAY_OF_SHIFT] - DAY_OF_SHIFT + 1
                cells.append(f"{np.median(late):.0f} ({np.mean(late < 366):.0%} of {len(late)}) |")
            where = "all rows" if values == 1 else "one value of 50"
            print(f"| {factor - 1:+.0%}, {where} |", *cells, flush=True)


if __name__ == "__main__":
    main()
