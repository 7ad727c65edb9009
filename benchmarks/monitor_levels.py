"""False alerts of `monitor`'s checks: `./dev run python benchmarks/monitor_levels.py`.

Logs whose predictions are right: labels are drawn with the predicted probabilities, 1,000 times for
each cell, and the checks of `monitor` are called on the sums with a tolerance of 0. "promised" is
the risk of each kind of check, 1 % by default: of the rate of all rows, of the rates of all
periods, of the losses of all periods, of a field's Field-RCE, and of the rates of all its values.
Printed is the share of logs with an alert; `*` where it is above the promise by more than three
binomial standard errors (by chance, one cell in a thousand).

A cell is: rows, values of the field, their sizes (equal, or falling as `rank ** -1.2`), the mean
probability, the standard deviation of the logits, and periods.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from calibration_records._logit_moments import NUM_BINS
from calibration_records.monitoring.bounds import loss_bounds
from calibration_records.monitoring.checks import _rate_bounds
from calibration_records.monitoring.field_error_bound import field_rce, field_rce_bound
from calibration_records.monitoring.moment_losses import MomentLosses
from calibration_records.monitoring.sums import Sums
from keras_calibration._ops.logit_moments import logit_moments

# (rows, values, power of their sizes, mean probability, deviation of the logits, periods)
CELLS = [
    (20_000, 20, 0.0, 0.1, 1.0, 7),
    (20_000, 20, 1.2, 0.1, 1.0, 7),
    (20_000, 300, 0.0, 0.1, 1.0, 7),
    (20_000, 300, 1.2, 0.1, 1.0, 7),
    (20_000, 5_000, 0.0, 0.1, 1.0, 7),
    (20_000, 5_000, 1.2, 0.1, 1.0, 7),
    (20_000, 300, 0.0, 0.01, 1.0, 7),
    (20_000, 300, 1.2, 0.01, 1.0, 7),
    (20_000, 300, 1.2, 0.001, 1.0, 7),
    (20_000, 5_000, 1.2, 0.001, 1.0, 7),
    (20_000, 300, 1.2, 0.5, 1.0, 7),
    (20_000, 300, 1.2, 0.9, 1.0, 7),
    (20_000, 300, 1.2, 0.1, 3.0, 7),
    (20_000, 300, 1.2, 0.02, 3.0, 7),
    (20_000, 300, 1.2, 0.1, 0.0, 7),
    (1_000, 2, 0.0, 0.1, 1.0, 1),
    (1_000, 2, 0.0, 0.01, 2.0, 1),
    (1_000, 20, 1.2, 0.1, 1.0, 4),
    (1_000, 20, 1.2, 0.01, 1.0, 4),
    (1_000, 300, 1.2, 0.02, 2.0, 4),
    (200, 5, 0.0, 0.3, 1.0, 2),
    (20_000, 300, 1.2, 0.1, 1.0, 90),
    (20_000, 300, 1.2, 0.01, 2.0, 90),
    (200_000, 20, 1.2, 0.1, 1.0, 7),
    (200_000, 300, 1.2, 0.01, 1.0, 7),
    (200_000, 50_000, 1.2, 0.02, 1.0, 7),
]
KINDS = ("all rows", "periods", "losses", "Field-RCE", "values")


class RightLog:
    """Rows of known probabilities, and the sums of labels drawn from them."""

    def __init__(self, cell: tuple, seed: int) -> None:
        rows, values, power, rate, deviation, periods = cell
        generator = np.random.default_rng(seed)
        noise = deviation * generator.normal(size=rows)
        shift = brentq(lambda bias: expit(noise + bias).mean() - rate, -20, 20)
        self.logits = np.clip(noise + shift, -15.9, 15.9)
        self.p = expit(self.logits)
        share = np.arange(1, values + 1.0) ** -power
        self.value = generator.choice(values, rows, p=share / share.sum())
        self.period = np.sort(generator.integers(0, periods, rows))
        self.num_values, self.num_periods = values, periods
        self.generator = generator
        # The bins of `logit_moments` are a quarter wide where these logits are.
        quarter = np.floor(self.logits * 4)
        self.bin = self.period * NUM_BINS + quarter.astype(int) + NUM_BINS // 2
        self.offset = (self.logits - (quarter + 0.5) / 4) * 8
        self.zero = self._moments(np.zeros(rows))
        self.value_rates = self._expected(self.value, values)
        self.period_rates = self._expected(self.period, periods)
        labels = (generator.random(rows) < self.p).astype(float)
        np.testing.assert_allclose(self.moments(labels), self._moments(labels), atol=1e-6)

    def _moments(self, labels: np.ndarray) -> np.ndarray:
        ones, period = np.ones(len(labels)), self.period.astype(np.int32)
        sums = logit_moments(labels, self.logits, ones, period, self.num_periods)
        return np.asarray(sums, np.float64)

    def moments(self, labels: np.ndarray) -> np.ndarray:
        """The moments of these labels, from those of labels 0: only four columns differ."""
        chosen = labels > 0
        where, offset = self.bin[chosen], self.offset[chosen]
        size = len(self.zero)
        count, moved = np.bincount(where, minlength=size), np.bincount(where, offset, size)
        change = np.stack([-count, count, -moved, moved], axis=1)
        return np.concatenate([self.zero[:, :4] + change, self.zero[:, 4:]], axis=1)

    def _expected(self, group: np.ndarray, size: int) -> Sums:
        """The sums of each group, with no positives."""
        columns = {
            "rows": np.ones(len(self.p)),
            "positives": np.zeros(len(self.p)),
            "predicted": self.p,
            "predicted_squares": self.p**2,
        }
        return Sums({name: np.bincount(group, each, size) for name, each in columns.items()})

    def draws(self, number: int) -> Iterator[tuple[Sums, Sums, np.ndarray]]:
        """Sums by value and by period, and moments by period, of drawn labels."""
        for _ in range(number):
            labels = (self.generator.random(len(self.p)) < self.p).astype(float)
            groups = ((self.value_rates, self.value), (self.period_rates, self.period))
            found = []
            for sums, group in groups:
                positives = np.bincount(group, labels, sums.num_groups)
                found.append(Sums(sums, positives=positives).of(sums["rows"] > 0))
            yield (*found, self.moments(labels).reshape(self.num_periods, NUM_BINS, -1))


def false_alerts(cell: tuple, risk: float, repetitions: int, seed: int) -> np.ndarray:
    """The share of right logs for which each kind of check raises an alert."""
    log = RightLog(cell, seed)
    bound = field_rce_bound(log.value_rates, risk)[-1]
    alerts = np.zeros(len(KINDS))
    for value_rates, period_rates, moments in log.draws(repetitions):
        each = 1 - risk / period_rates.num_groups
        losses = [loss_bounds(MomentLosses(each_moments), each) for each_moments in moments]
        alerts += [
            _rate_bounds(period_rates.added([0]), 0.0, 1 - risk)[-1].any(),
            _rate_bounds(period_rates, 0.0, each)[-1].any(),
            any(value < low or value > high for value, _, low, high in losses),
            field_rce(value_rates) > bound,
            _rate_bounds(value_rates, 0.0, 1 - risk / value_rates.num_groups)[-1].any(),
        ]
    return alerts / repetitions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--risk", type=float, default=0.01)
    parser.add_argument("--cells", type=int, nargs="*", help="numbers of cells; default: all")
    options = parser.parse_args()
    error = np.sqrt(options.risk * (1 - options.risk) / options.repetitions)
    print(f"promised {options.risk:.1%}, standard error {error:.2%}\n")
    print("| rows, values, sizes, rate, spread, periods |", " | ".join(KINDS), "|")
    print("| --- |" + " ---: |" * len(KINDS))
    for number, cell in enumerate(CELLS):
        if options.cells and number not in options.cells:
            continue
        rows, values, power, rate, deviation, periods = cell
        shares = false_alerts(cell, options.risk, options.repetitions, seed=number)
        cells = [
            f"{share:.1%}{' *' if share > options.risk + 3 * error else ''}" for share in shares
        ]
        sizes = f"rank^-{power}" if power else "equal"
        name = f"{rows:,}, {values:,}, {sizes}, {rate}, {deviation}, {periods}"
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
