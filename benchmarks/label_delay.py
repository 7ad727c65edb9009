"""Labels that come late: `./dev run python benchmarks/label_delay.py`.

Generated logs of 60 days with 50 sites, each with a level and a mean delay (median 4 days) of its
own; the true logits fall by .01 a day. `FieldBias` is fitted to the labels seen by day 60, and
predicts the next 7 days. "predicted / true" is the ratio of the sums of probabilities there, and
"by site" the mean over sites of |predicted / true - 1|; "top tenth" is the ratio in the rows with
the highest base logits. The true probabilities are known. The rows of the fit:

- observed: the last 14 days, as if all labels were there,
- matured: older than the window only,
- fit, score: the last 14 days with the labels and weights of `LabelDelay.weigh`, by site; other
  lines say what is different,
- complete: the last 14 days with all labels, which nobody has.

The worlds where something that `LabelDelay` assumes is wrong are named "drifting delays" (the mean
grows by 2 % a day) and "slow where likely" (it is multiplied by the odds to the power .5).
"""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

import keras_calibration as kc

DAYS, NEXT, SITES, RECENT = 60.0, 7.0, 50, 14.0


@dataclass
class World:
    """A log: its size, the logit of the mean rate, and how the delays behave."""

    num_rows: int = 600_000
    level: float = -3.5
    drift: float = 0.01
    window: float = 30.0
    growth: float = 0.0
    power: float = 0.0


@dataclass
class Log:
    """The rows of a world."""

    time: np.ndarray
    site: np.ndarray
    logit: np.ndarray
    probability: np.ndarray
    label_time: np.ndarray


WORLDS = {
    "as above": World(),
    "no drift": World(drift=0.0),
    "window of 7 days": World(window=7.0),
    "60,000 rows": World(num_rows=60_000),
    "rate .1 %": World(num_rows=1_500_000, level=-7.5),
    "rate 25 %": World(num_rows=150_000, level=-1.2),
    "drifting delays": World(growth=0.02),
    "slow where likely": World(power=0.5),
}


def make_log(world: World, seed: int) -> Log:
    """Rows of 67 days with their complete labels; delays are exponential, cut at the window."""
    generator = np.random.default_rng(seed)
    time = generator.uniform(0, DAYS + NEXT, world.num_rows)
    site = generator.integers(0, SITES, world.num_rows)
    logit = generator.normal(world.level, 0.8, world.num_rows)
    true = logit + generator.normal(0, 0.5, SITES)[site] - world.drift * (time - DAYS)
    mean = np.exp(generator.normal(np.log(4.0), 0.5, SITES))[site]
    mean *= np.exp(world.growth * (time - DAYS) + world.power * (logit - world.level))
    within = -np.expm1(-world.window / mean)
    delay = -mean * np.log1p(-generator.random(world.num_rows) * within)
    positive = generator.random(world.num_rows) < expit(true)
    return Log(time, site, logit, expit(true), np.where(positive, time + delay, np.nan))


def fits(world: World, log: Log) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Names of the ways, with the numbers of their rows, labels and weights."""
    seen = (log.label_time <= DAYS).astype(float)
    recent = np.flatnonzero((log.time > DAYS - RECENT) & (log.time <= DAYS))
    matured = np.flatnonzero(log.time <= DAYS - world.window)
    ones = np.ones(len(log.time))
    yield "observed", recent, seen[recent], ones[recent]
    yield f"matured, {world.window:.0f} days", matured, seen[matured], ones[matured]
    past = log.time <= DAYS
    tenth = np.searchsorted(np.quantile(log.logit, np.arange(0.1, 1, 0.1)), log.logit)
    of_all = np.zeros(len(log.time), np.int64)
    ways = [("fit", log.site, None), ("score", log.site, None), ("fit, one curve", of_all, None)]
    if world.growth:
        ways += [(f"{name}, half-life 7", log.site, 7.0) for name in ("fit", "score")]
    if world.power:
        ways += [("fit, by tenth of the logit", tenth, None)]
        ways += [("fit, by site and tenth", log.site * 10 + tenth, None)]
    for name, field, half_life in ways:
        delay = kc.LabelDelay(world.window, half_life=half_life)
        delay.fit(log.time[past], log.label_time[past], DAYS, field[past])
        labels, weights = delay.weigh(
            log.time[recent],
            log.label_time[recent],
            DAYS,
            field[recent],
            probability=expit(log.logit[recent]),
            purpose=name.partition(",")[0],
        )
        yield name, recent, labels, weights
    complete = ~np.isnan(log.label_time[recent])
    yield "complete", recent, complete.astype(float), ones[recent]


def figures(log: Log, rows: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> list[float]:
    """Of the next days: predicted / true, the error by site, the ratio in the top tenth."""
    head = kc.layers.FieldBias({"site": SITES})
    head.fit(log.logit[rows], labels, {"site": log.site[rows]}, weights)
    new = np.flatnonzero(log.time > DAYS)
    site, true = log.site[new], log.probability[new]
    shifted = np.asarray(head(log.logit[new], {"site": site})).reshape(-1)
    predicted = expit(shifted.astype(np.float64))
    by_site = np.bincount(site, predicted) / np.bincount(site, true)
    top = log.logit[new] >= np.quantile(log.logit[new], 0.9)
    return [
        predicted.sum() / true.sum(),
        float(np.mean(np.abs(by_site - 1))),
        predicted[top].sum() / true[top].sum(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--logs", type=int, default=10)
    options = parser.parse_args()
    # Of drifting delays `fit` warns, as it should.
    warnings.filterwarnings("ignore", message="The delays of young rows")
    print(f"Means of {options.logs} logs; ± standard errors\n")
    print("| world | rows | predicted / true | by site | top tenth |")
    print("| --- | --- | ---: | ---: | ---: |")
    for world_name, world in WORLDS.items():
        found: dict[str, list[list[float]]] = {}
        for seed in range(options.logs):
            log = make_log(world, seed)
            for way, *rows in fits(world, log):
                found.setdefault(way, []).append(figures(log, *rows))
        for way, values in found.items():
            mean = np.mean(values, axis=0)
            error = np.std(values, axis=0, ddof=1)[0] / np.sqrt(len(values))
            print(
                f"| {world_name} | {way} | {mean[0]:.3f} ± {error:.3f} | {mean[1]:.3f} "
                f"| {mean[2]:.3f} |",
                flush=True,
            )
            world_name = ""


if __name__ == "__main__":
    main()
