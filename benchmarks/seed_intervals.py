"""Coverage and errors of the statistics of seeds: `./dev run python benchmarks/seed_intervals.py`.

Four tables by simulation: coverage of the intervals of the metric accuracy and of the mean
difference, with rliable's bootstrap and statsmodels' intervals beside ours where these are
installed; coverage of the intervals of the ratio of standard deviations; how often each test, and
the sequential plans, see a difference where there is none; and coverage with shared seeds and for
new rows.

`--trials` sets the number of experiments for each figure: 4000 give it a standard error of 0.3
points.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy import special

from keras_calibration.statistics import (
    accuracy_interval,
    always_valid_difference,
    detection_gain,
    difference_on_new_rows,
    independent_seed_accuracy,
    mean_difference,
    pitman_morgan,
    pocock_confidence,
    same_seed_accuracy,
    std_ratio,
)

NUMBERS_OF_RUNS = (5, 10, 20, 60)
ACCURACIES = (0.6, 0.75, 0.9)
KINDS = ("normal", "unequal", "skewed")
Runs = np.ndarray[Any, np.dtype[np.float64]]
Interval = Callable[[Runs, Runs], tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=4000, help="experiments for each figure")
    trials = parser.parse_args().trials
    accuracy_table(trials)
    spread_table(trials)
    error_table(trials)
    other_table(trials)


def draw(rng: np.random.Generator, kind: str, accuracy: float, shape: tuple[int, int]) -> Any:
    """Runs of A and B of which A is the better with this probability, and the shift of B."""
    if kind == "skewed":
        shift = -np.log(2 * (1 - accuracy))
        return rng.exponential(size=shape), shift + rng.exponential(size=shape), shift
    scale = 2.0 if kind == "unequal" else 1.0
    shift = special.ndtri(accuracy) * np.hypot(1, scale)
    return rng.normal(size=shape), shift + scale * rng.normal(size=shape), shift


def share(hits: Iterable[bool]) -> float:
    found = list(hits)
    return float(np.mean(found)) if found else np.nan


def accuracy_table(trials: int) -> None:
    rivals = {"Newcombe": lambda a, b: accuracy_interval(a, b)[1:3], **rival_intervals()}
    print(f"\nCoverage of 95 % intervals, {trials:,} experiments each")
    print(
        f"{'Acc':>4} {'runs':<8} {'m':>3}" + "".join(f"{name:>12}" for name in (*rivals, "Welch"))
    )
    rng = np.random.default_rng(0)
    for accuracy, kind, num_runs in itertools.product(ACCURACIES, KINDS, NUMBERS_OF_RUNS):
        a, b, shift = draw(rng, kind, accuracy, (trials, num_runs))
        figures = []
        for name, interval in rivals.items():
            # A bootstrap takes a good part of a second.
            num = trials if name != "rliable" else min(trials, 100) * (kind == "normal")
            pairs = zip(a[:num], b[:num], strict=True)
            ends = (interval(*pair) for pair in pairs)
            figures.append(share(low <= accuracy <= high for low, high in ends))
        welch = (mean_difference(*pair) for pair in zip(a, b, strict=True))
        figures.append(share(not estimate.excludes(shift) for estimate in welch))
        numbers = "".join(f"{figure:>12.3f}".replace("nan", "  -") for figure in figures)
        print(f"{accuracy:>4} {kind:<8} {num_runs:>3}{numbers}")


def rival_intervals() -> dict[str, Interval]:
    """The intervals of other libraries, those that are installed."""
    found: dict[str, Interval] = {}
    try:
        from statsmodels.stats.nonparametric import rank_compare_2indep
    except ImportError:
        pass
    else:
        # What is not defined, where the runs do not overlap, misses: no comparison with NaN holds.
        found["statsmodels"] = lambda a, b: rank_compare_2indep(b, a).conf_int()
    try:
        from rliable import library, metrics
    except ImportError:
        pass
    else:

        def bootstrap(a: Runs, b: Runs) -> tuple[float, float]:
            pairs = {"a,b": (b[:, None], a[:, None])}
            _, ends = library.get_interval_estimates(
                pairs, metrics.probability_of_improvement, reps=200
            )
            return float(ends["a,b"][0].item()), float(ends["a,b"][1].item())

        try:
            bootstrap(np.arange(5.0), np.arange(5.0) + 0.5)
        except TypeError as error:
            print(f"rliable does not run with the versions here: {error}")
        else:
            found["rliable"] = bootstrap
    return found


def paired_losses(rng: np.random.Generator, kind: str, ratio: float, shape: tuple[int, int]) -> Any:
    """A steadier loss and a plain one, of the same runs, with spreads of the given ratio."""
    if kind == "normal":
        common, own = rng.normal(size=(2, *shape))
        y = common
        return ratio * (0.9 * common + np.sqrt(1 - 0.81) * own), y, ratio
    # Plain = calibrated + gain, the gain with the χ² distribution of a squared bias.
    calibrated = rng.normal(size=shape)
    gain = rng.normal(size=shape) ** 2 / np.sqrt(2) * np.sqrt(1 / ratio**2 - 1)
    return calibrated, calibrated + gain, ratio


def spread_table(trials: int) -> None:
    print("\nCoverage of 95 % intervals of the ratio of standard deviations, 0.8, paired")
    print(f"{'runs':<8} {'m':>3} {'jackknife':>12} {'Pitman-Morgan':>14}")
    rng = np.random.default_rng(1)
    for kind, num_runs in itertools.product(("normal", "skewed"), NUMBERS_OF_RUNS):
        x, y, ratio = paired_losses(rng, kind, 0.8, (trials, num_runs))
        pairs = list(zip(x, y, strict=True))
        jackknife, pitman = (
            share(not function(*pair).excludes(ratio) for pair in pairs)
            for function in (std_ratio, pitman_morgan)
        )
        print(f"{kind:<8} {num_runs:>3} {jackknife:>12.3f} {pitman:>14.3f}")


def error_table(trials: int) -> None:
    print("\nDifferences seen at 5 % where there is none, in percent")
    names = ("Welch", "paired t", "paired DeLong", "Pitman-Morgan", "jackknife")
    print(f"{'m':>3}" + "".join(f"{name:>15}" for name in names))
    rng = np.random.default_rng(2)
    for num_runs in NUMBERS_OF_RUNS:
        a, b, other_a, other_b, noise_a, noise_b = rng.normal(size=(6, trials, num_runs))
        shifted = b + np.sqrt(2) * special.ndtri(0.75) * np.sqrt(2)
        experiments = list(zip(a, b, shifted, other_a, other_b, noise_a, noise_b, strict=True))
        seen = [
            share(mean_difference(a, b).excludes(0) for a, b, *_ in experiments),
            share(mean_difference(a, b, paired=True).excludes(0) for a, b, *_ in experiments),
            # Two losses with as much noise of their own each, at a true accuracy of 0.75.
            share(
                detection_gain(a + p, s + q, a + r, s + t).excludes(0)
                for a, _, s, p, q, r, t in experiments
            ),
            share(pitman_morgan(a + p, a + q).excludes(1) for a, _, _, p, q, *_ in experiments),
            share(std_ratio(a + p, a + q).excludes(1) for a, _, _, p, q, *_ in experiments),
        ]
        print(f"{num_runs:>3}" + "".join(f"{100 * figure:>15.1f}" for figure in seen))
    print("\nThe same for plans that look more than once, and the chance to see Acc .76 and .86")
    a, b = rng.normal(size=(2, trials, 20))
    every, four = range(3, 21), (5, 10, 15, 20)
    level = pocock_confidence(4)
    plans = {
        "Welch after every seed, 3 to 20": (every, mean_difference),
        "Welch after 5, 10, 15, 20 seeds": (four, mean_difference),
        "Pocock at 5, 10, 15, 20 seeds": (
            four,
            lambda a, b: mean_difference(a, b, confidence=level),
        ),
        "always valid, 3 to 20": (every, always_valid_difference),
        "Welch once, at 20": ((20,), mean_difference),
    }
    for name, (looks, interval) in plans.items():
        figures = []
        for accuracy in (0.5, 0.76, 0.86):
            shift = np.sqrt(2) * special.ndtri(accuracy)
            figures.append(
                share(
                    any(interval(x[:m], y[:m]).excludes(0) for m in looks)
                    for x, y in zip(a[: trials // 2], b[: trials // 2] + shift, strict=True)
                )
            )
        print(f"{name:<34}" + "".join(f"{100 * figure:>8.1f}" for figure in figures))


def other_table(trials: int) -> None:
    print("\nCoverage of the other 95 % intervals")
    rng = np.random.default_rng(3)
    for correlation, num_runs in itertools.product((0.0, 0.5, 0.9), NUMBERS_OF_RUNS):
        common = np.sqrt(correlation) * rng.normal(size=(trials, num_runs))
        a, b = common + np.sqrt(1 - correlation) * rng.normal(size=(2, trials, num_runs))
        pairs = list(zip(a, b + 1, strict=True))
        alone = special.ndtr(1 / np.sqrt(2))
        same = special.ndtr(1 / np.sqrt(2 * (1 - correlation)))
        independent = share(not independent_seed_accuracy(*p).excludes(alone) for p in pairs)
        shared = share(not same_seed_accuracy(*p).excludes(same) for p in pairs)
        paired = share(not mean_difference(*p, paired=True).excludes(1) for p in pairs)
        print(
            f"m = {num_runs}, seeds correlated {correlation}: independent-seed Acc "
            f"{independent:.3f}, same-seed Acc {shared:.3f}, paired t {paired:.3f}"
        )
    for num_runs in (3, 5, 10):
        covered = share(new_rows(rng, num_runs) for _ in range(trials // 4))
        print(f"m = {num_runs}, difference on new rows: {covered:.3f}")


def new_rows(rng: np.random.Generator, num_runs: int, num_rows: int = 400) -> bool:
    rows = rng.exponential(size=num_rows)
    moved = rows + 0.1 + 0.5 * rng.normal(size=num_rows)
    losses = [
        of_rows
        + 0.03 * rng.normal(size=(num_runs, 1))
        + 0.2 * rng.normal(size=(num_runs, num_rows))
        for of_rows in (rows, moved)
    ]
    return not difference_on_new_rows(*losses).excludes(0.1)


if __name__ == "__main__":
    main()
