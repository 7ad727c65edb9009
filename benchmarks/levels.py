"""Levels that the statistics promise: `./dev run python benchmarks/levels.py`.

Five tables, each figure from 1,000 simulated data sets:

- coverage of the 95 % intervals of `FieldBias`, by number of field values, expected positives of a
  value, and standard deviation of the offsets, and the mean width of the intervals compared with
  those of an oracle that knows this standard deviation;
- coverage of the intervals of `FieldBias` with numeric columns (100 data sets a figure), whose true
  effects are random walks, sines, straight lines, or nothing;
- share of data sets in which right predictions have a p-value of `multicalibration_error` below 5
  and 1 %, by number and size of segments;
- share of decisions for one of two equal pipelines, by number of seeds, with planned looks and with
  any number of looks, and by how much noisier one of them is;
- coverage of intervals of rates: of `field_table`, and Wilson's of the plots.

Name tables to run only these.
"""

import argparse
from typing import Any, cast

import numpy as np
from scipy.special import expit, ndtr

from calibration_records.statistics.field_noise import jeffreys_interval
from keras_calibration._solvers.field_offsets import FieldOffsets, OffsetRows, fit_field_offsets
from keras_calibration._solvers.field_posterior import FieldPosterior
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration.layers import FieldBias
from keras_calibration.plots.rates import wilson_interval
from keras_calibration.scoring import multicalibration_error
from keras_calibration.statistics import (
    always_valid_difference,
    mean_difference,
)

# Relative to the mean logit of a cell; few different ones, so that rows can be counted.
LOGITS = np.array([-1.2, -0.5, 0.0, 0.5, 1.2])
MEAN_LOGIT = -3.0
Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=", ".join(TABLES))
    parser.add_argument("--samples", type=int, default=1000, help="data sets for each figure")
    arguments = parser.parse_args()
    for name in arguments.tables:
        TABLES[name](arguments.samples)


def field_bias(num_samples: int) -> None:
    print("\nFieldBias: coverage of seen values in %, of an unseen value; width / oracle's")
    print(f"{'values':>6}{'positives':>10}{'spread':>8}{'seen':>7}{'unseen':>8}{'width':>7}")
    for num_values in (5, 20, 200):
        for positives in (2, 10, 50):
            for spread in (0.0, 0.1, 0.2, 0.5, 1.0):
                rng = np.random.default_rng(0)
                # A data set of 200 values is as good as several of 20.
                number = num_samples if num_values <= 20 else max(num_samples // 5, 1)
                cells = [one_data_set(rng, num_values, positives, spread) for _ in range(number)]
                seen, unseen, width, oracle_level = np.mean([c for c in cells if c], axis=0)
                print(
                    f"{num_values:>6}{positives:>10}{spread:>8g}{100 * seen:>7.1f}"
                    f"{100 * unseen:>8.1f}{width / oracle_level:>7.2f}",
                    flush=True,
                )


def one_data_set(
    rng: np.random.Generator, num_values: int, positives: int, spread: float
) -> tuple[float, float, float, float] | None:
    """Coverage of seen values, whether an unseen one is covered, mean width, and the oracle's."""
    offsets = rng.normal(0, spread, num_values + 1)
    chances = expit(MEAN_LOGIT + LOGITS + offsets[:-1, None])
    num_rows = max(1, round(positives / expit(MEAN_LOGIT + LOGITS).sum()))
    counts = rng.binomial(num_rows, chances).ravel()
    if not counts.any():
        return None
    logits = np.tile(MEAN_LOGIT + LOGITS, num_values)
    rows = OffsetRows(
        np.tile(logits, 2),
        np.repeat([1.0, 0.0], len(logits)),
        np.concatenate([counts, num_rows - counts]).astype(float),
        ids=[np.tile(np.repeat(np.arange(num_values), len(LOGITS)), 2)],
    )

    def fitted(log_prior: Any) -> tuple[Array, Array]:
        """Logits and standard deviations of all values at the mean logit."""
        fit = fit_field_offsets(rows, [num_values + 1], log_prior)
        return MEAN_LOGIT * fit.slope + fit.bias + fit.offsets[0], deviations(fit)

    logits, away = fitted(half_cauchy(1.0))
    covered = np.abs(logits - MEAN_LOGIT - offsets) <= 1.96 * away
    true_log_spread = np.log(max(spread, 1e-3))
    _, oracle_level = fitted(lambda s: -1e6 * (np.log(s) - true_log_spread) ** 2)
    return covered[:-1].mean(), covered[-1], away[:-1].mean(), oracle_level[:-1].mean()


def deviations(fit: FieldOffsets) -> Array:
    """Posterior standard deviations of the logits of all values at the mean logit."""
    posterior = cast(FieldPosterior, fit.posterior)
    of_line = np.array([MEAN_LOGIT, 1.0]) @ posterior.factor
    return np.sqrt(posterior.variances[0] + np.sum(of_line**2))


def segments(num_samples: int) -> None:
    print("\nmulticalibration_error of right predictions: share of p < 5 % and p < 1 %, in %")
    print(f"{'sites':>6}{'rows':>6}{'rate':>7}{'weights':>9}{'p<.05':>8}{'p<.01':>8}")
    for num_sites, num_rows, rate, weighted in (
        (10, 500, 0.011, False),
        (10, 500, 0.1, False),
        (10, 500, 0.1, True),
        (100, 300, 0.012, False),
        (100, 300, 0.05, False),
        (100, 300, 0.05, True),
        (500, 200, 0.02, False),
        (500, 200, 0.1, False),
    ):
        rng = np.random.default_rng(0)
        site = np.repeat(np.arange(num_sites), num_rows)
        p_values = []
        for _ in range(num_samples):
            chance = rate * rng.uniform(0.5, 1.5, len(site))
            labels = (rng.random(len(site)) < chance).astype(float)
            weights = rng.choice([1.0, 5.0, 20.0], len(site)) if weighted else None
            error = multicalibration_error(labels, chance, {"site": site}, weights)
            p_values.append(error.p_value)
        below = [100 * float(np.mean(np.array(p_values) < level)) for level in (0.05, 0.01)]
        kind = "1 to 20" if weighted else "none"
        print(
            f"{num_sites:>6}{num_rows:>6}{rate:>7g}{kind:>9}" + "{:>8.1f}{:>8.1f}".format(*below),
            flush=True,
        )


def looks(num_samples: int) -> None:
    print("\nEqual pipelines, B noisier by a factor: decided for one of them, in %")
    print(f"{'seeds':>6}" + "".join(f"{name:>22}" for name in ("once", "4 looks", "any looks")))
    print(f"{'':>6}" + "".join(f"{factor:>7}x" + " " * 0 for factor in 3 * (1, 3, 10)))
    for num_seeds in (3, 5, 10, 20):
        figures = []
        quarters = sorted({max(2, num_seeds * part // 4) for part in (1, 2, 3, 4)})
        plans = (
            ((num_seeds,), mean_difference, 0.95),
            (quarters, mean_difference, 1 - 0.05 / len(quarters)),
            (range(2, num_seeds + 1), always_valid_difference, 0.95),
        )
        for when, interval, confidence in plans:
            for factor in (1, 3, 10):
                rng = np.random.default_rng(0)
                a, b = rng.normal(size=(2, num_samples, num_seeds))
                figures.append(
                    100
                    * np.mean(
                        [
                            any(
                                interval(x[:m], factor * y[:m], confidence=confidence).excludes(0)
                                for m in when
                            )
                            for x, y in zip(a, b, strict=True)
                        ]
                    )
                )
        print(f"{num_seeds:>6}" + "".join(f"{figure:>8.1f}" for figure in figures), flush=True)


def rates(num_samples: int) -> None:
    print("\nIntervals of a rate at 95 %: coverage in %, by expected number of positives")
    print(f"{'rate':>6}" + "".join(f"{number:>8}" for number in (1, 2, 5, 20, 100)))
    for name, interval in (("Jeffreys", jeffreys_interval), ("Wilson", None)):
        for rate in (0.001, 0.03, 0.3):
            figures = []
            for number in (1, 2, 5, 20, 100):
                num_rows = float(round(number / rate))
                rng = np.random.default_rng(0)
                counts = rng.binomial(int(num_rows), rate, 20 * num_samples).astype(float)
                sizes = np.full_like(counts, num_rows)
                low, high = (
                    wilson_interval(counts / sizes, sizes)
                    if interval is None
                    else interval(counts, sizes, 0.95)
                )
                figures.append(100 * np.mean((low <= rate) & (rate <= high)))
            print(f"{rate:>6g}" + "".join(f"{f:>8.1f}" for f in figures) + f"  {name}")


def numeric(num_samples: int) -> None:
    print("\nFieldBias, numeric columns: coverage in %, beyond 1.5 standard deviations, of missing")
    print(f"{'rows':>6}{'columns':>9}{'shape':>10}{'size':>6}{'all':>7}{'beyond':>8}{'missing':>9}")
    for num_rows in (1000, 5000):
        for num_columns in (1, 3):
            for shape in ("walk", "sine", "line", "none"):
                for size in (0.2, 0.5) if shape != "none" else (0.0,):
                    rng = np.random.default_rng(0)
                    number = max(num_samples // 10, 1)
                    cells = [
                        one_set_of_columns(rng, num_rows, num_columns, shape, size)
                        for _ in range(number)
                    ]
                    figures = 100 * np.mean(cells, axis=0)
                    print(
                        f"{num_rows:>6}{num_columns:>9}{shape:>10}{size:>6g}{figures[0]:>7.1f}"
                        f"{figures[1]:>8.1f}{figures[2]:>9.1f}",
                        flush=True,
                    )


def one_set_of_columns(
    rng: np.random.Generator, num_rows: int, num_columns: int, shape: str, size: float
) -> tuple[float, float, float]:
    """Shares of new rows that are covered: of all, of those far out, of those with a gap."""
    common = rng.normal(size=2 * num_rows)
    columns = {
        f"x{number}": np.sqrt(0.5) * (common + rng.normal(size=2 * num_rows))
        for number in range(num_columns)
    }
    logits = rng.normal(-1.5, 1, 2 * num_rows)
    true = 0.9 * logits + 0.2
    for name, values in columns.items():
        walk = np.cumsum(rng.normal(size=1001)) / np.sqrt(1000 / 6)
        effects = {
            "walk": np.interp(ndtr(values), np.linspace(0, 1, 1001), walk - walk.mean()),
            "sine": np.sqrt(2) * np.sin(1.5 * values),
            "line": values,
            "none": 0.0,
        }
        missing = rng.random(2 * num_rows) < 0.1
        true += size * np.where(missing, rng.normal(), effects[shape])
        columns[name] = np.where(missing, np.nan, values)
    labels = rng.random(2 * num_rows) < expit(true)
    head = FieldBias({}, numeric=list(columns))
    head.fit(logits[:num_rows], labels[:num_rows], {n: v[:num_rows] for n, v in columns.items()})
    new = {name: values[num_rows:] for name, values in columns.items()}
    lower, upper = head.interval(logits[num_rows:], new)
    covered = (lower[:, 0] <= expit(true[num_rows:])) & (expit(true[num_rows:]) <= upper[:, 0])
    is_far, is_missing = np.abs(new["x0"]) > 1.5, np.isnan(new["x0"])
    return covered.mean(), covered[is_far].mean(), covered[is_missing].mean()


TABLES = {
    "field_bias": field_bias,
    "numeric": numeric,
    "segments": segments,
    "looks": looks,
    "rates": rates,
}

if __name__ == "__main__":
    main()
