"""A daily monitor of labels that come late: `./dev run python benchmarks/monitor_late.py`.

Logs of 25,000 rows a day with p = 0.02; a label comes 0 to 13 days after its prediction, on average
after 4.4. Every day, the test of shifts of the whole log, as in a report without fields, looks at

- the labels so far, with the true distribution of the delays;
- the same with a distribution that was estimated on 30 days before;
- rows of at least 14 days alone, whose labels are complete: the wait that is common.

The tolerance is 0 for the true distribution, 0.05 for the others. Printed are the false alarms of
logs of a year, and the days from a shift on day 100 to the alarm: the median, and the share found.
The last rows have delays that become longer on day 100, with right predictions: what is found then
is that labels come later.
"""

import argparse

import numpy as np
from scipy.special import logsumexp

from calibration_records.monitoring.shifts import SHIFTS, log_ratios
from calibration_records.monitoring.sums import Sums

ROWS, P, YEAR, DAY_OF_SHIFT = 25_000, 0.02, 365, 100
# Without fields, there are three kinds of checks (`checks.Budget`).
NEEDED = np.log(3 / 0.01)


def delays(mean: float) -> np.ndarray:
    """The shares of the positives by day of the delay (14,)."""
    shares = np.exp(-np.arange(14) / mean)
    return shares / shares.sum()


def log_ratios_of(labels: np.ndarray, shares: np.ndarray, tolerance: float) -> np.ndarray:
    """The log ratios of days whose labels so far are known by delay (days, ages)."""
    num_ages = labels.shape[-1]
    until = np.cumsum(shares)[:num_ages]
    before = until - shares[:num_ages]
    num_labels = labels.sum(axis=-1)
    sums = Sums(positives=num_labels.ravel())
    for name, rate in (("hazard_up", 1 + tolerance), ("hazard_down", 1 / (1 + tolerance))):
        p = rate * P
        jump = p * shares[:num_ages] / (1 - p * before)
        jump = -np.log1p(-jump) if name == "hazard_up" else jump
        then = -np.log1p(-p * before) + jump / 2
        without = -np.log1p(-p * until[-1])
        sums[name] = (labels @ then + (ROWS - num_labels) * without).ravel()
    return log_ratios(sums, tolerance).reshape(*labels.shape[:-1], -1)


def first_alarms(
    labels: np.ndarray, shares: np.ndarray, tolerance: float, waits: bool
) -> np.ndarray:
    """Of each log, the first day on which there is an alarm; its number of days if there is none.

    Args:
        labels: Labels of each log and day by delay (logs, days, 14).
        shares: What is believed of the delays: one distribution (14,), or one of each log.
        tolerance: Relative error that does not matter.
        waits: Whether rows are left out whose labels are not complete.
    """
    num_logs, num_days, num_delays = labels.shape
    shares = np.broadcast_to(shares, (num_logs, num_delays))
    by_age = np.stack(
        [
            np.stack(
                [
                    log_ratios_of(labels[i, :, : age + 1], shares[i], tolerance)
                    for i in range(num_logs)
                ]
            )
            for age in ([num_delays - 1] if waits else range(num_delays))
        ],
        axis=2,
    )  # (logs, days, ages, shifts)
    num_ages, year = by_age.shape[2], np.log(1 / 365.25 / len(SHIFTS))
    first = np.full(num_logs, num_days)
    # The evidence of the days whose labels are complete, by shift.
    complete = np.full((num_logs, len(SHIFTS)), -np.inf)
    for today in range(num_days):
        newest = today - (num_delays - 1) * waits
        oldest = max(newest - num_ages + 1, 0)
        evidence = complete
        for day in range(oldest, newest + 1):
            evidence = np.logaddexp(evidence, year) + by_age[:, day, newest - day]
            if newest - day == num_ages - 1:
                complete = evidence
        is_alarm = logsumexp(evidence, axis=1) >= NEEDED
        first = np.where(is_alarm & (first == num_days), today, first)
    return first


def drawn(num_logs: int, factor: float, new_mean: float, rng: np.random.Generator) -> np.ndarray:
    """Labels of logs of a year by day and delay; rates and delays change on day 100."""
    old = P * delays(6.0)
    new = factor * P * delays(new_mean)
    chances = [np.append(part, 1 - part.sum()) for part in (old, new)]
    before = rng.multinomial(ROWS, chances[0], (num_logs, DAY_OF_SHIFT))
    after = rng.multinomial(ROWS, chances[1], (num_logs, YEAR - DAY_OF_SHIFT))
    return np.concatenate([before, after], axis=1)[..., :-1].astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print("| change on day 100 | true delays | estimated delays | complete labels |")
    print("| --- | ---: | ---: | ---: |")
    for name, factor, mean in (
        ("none: false alarms in a year", 1.0, 6.0),
        ("rates +10%", 1.1, 6.0),
        ("rates +30%", 1.3, 6.0),
        ("rates -20%", 0.8, 6.0),
        ("delays +5%", 1.0, 6.3),
        ("delays +30%", 1.0, 7.8),
    ):
        num_logs = options.logs if factor == 1.0 and mean == 6.0 else options.logs // 10
        labels = drawn(num_logs, factor, mean, rng)
        history = rng.multinomial(30 * ROWS * P, delays(6.0), num_logs)
        estimated = history / history.sum(axis=1, keepdims=True)
        cells = []
        for shares, tolerance, waits in (
            (delays(6.0), 0.0, False),
            (estimated, 0.05, False),
            (delays(6.0), 0.05, True),
        ):
            first = first_alarms(labels, shares, tolerance, waits)
            if name.startswith("none"):
                cells.append(f"{np.mean(first < YEAR):.2%}")
            else:
                later = first[first >= DAY_OF_SHIFT]
                days = np.median(later) - DAY_OF_SHIFT + 1
                cells.append(f"{days:.0f} ({np.mean(later < YEAR):.0%})")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
