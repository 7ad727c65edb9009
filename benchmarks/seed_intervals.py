"""Coverage and errors of the statistics of seeds: `./dev run python benchmarks/seed_intervals.py`.

Four tables by simulation: coverage of the intervals of the metric accuracy and of the mean
difference, with rliable's bootstrap and statsmodels' intervals beside ours where these are
installed; how often each test, and the sequential plans, see a difference where there is none;
coverage with shared seeds; and coverage of the share of bias and of the share of a difference that
survives calibration.

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
    bias_share,
    independent_seed_accuracy,
    mean_difference,
    same_seed_accuracy,
    surviving_share,
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
    error_table(trials)
    other_table(trials)
    bias_table(trials)


def draw(rng: np.random.Generator, kind: str, accuracy: float, shape: tuple[int, int]) -> Any:
    """Runs of A and B of which A is the better with this probability, and the shift of B."""
    if kind == "skewed":
        shift = -np.log(2 * (1 - accuracy))
        return rng.exponential(size=shape), shift + rng.exponential(size=shape), shift
    scale = 2.0 if kind == "unequal" else 1.0
    shift = special.ndtri(accuracy) * np.hypot(1, scale)
    return rng.normal(size=shape), shift + scale * rng.normal(size=shape), shift


def share(hits: Iterable[bool]) -> float:
    outcomes = list(hits)
    return float(np.mean(outcomes)) if outcomes else np.nan


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
    intervals: dict[str, Interval] = {}
    try:
        from statsmodels.stats.nonparametric import rank_compare_2indep
    except ImportError:
        pass
    else:
        # What is not defined, where the runs do not overlap, misses: no comparison with NaN holds.
        intervals["statsmodels"] = lambda a, b: rank_compare_2indep(b, a).conf_int()
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
            intervals["rliable"] = bootstrap
    return intervals


def error_table(trials: int) -> None:
    print("\nDifferences seen at 5 % where there is none, in percent")
    names = ("Welch", "paired t")
    print(f"{'m':>3}" + "".join(f"{name:>15}" for name in names))
    rng = np.random.default_rng(2)
    for num_runs in NUMBERS_OF_RUNS:
        pairs = list(zip(*rng.normal(size=(2, trials, num_runs)), strict=True))
        seen = [
            share(mean_difference(a, b, paired=paired).excludes(0) for a, b in pairs)
            for paired in (False, True)
        ]
        print(f"{num_runs:>3}" + "".join(f"{100 * figure:>15.1f}" for figure in seen))
    print("\nThe same for plans that look more than once, and the chance to see Acc .76 and .86")
    a, b = rng.normal(size=(2, trials, 20))
    every, four = range(3, 21), (5, 10, 15, 20)
    plans = {
        "Welch after every seed, 3 to 20": (every, mean_difference),
        "Welch after 5, 10, 15, 20 seeds": (four, mean_difference),
        "Bonferroni at 5, 10, 15, 20 seeds": (
            four,
            lambda a, b: mean_difference(a, b, confidence=1 - 0.05 / 4),
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
        same_seed = special.ndtr(1 / np.sqrt(2 * (1 - correlation)))
        independent = share(not independent_seed_accuracy(*p).excludes(alone) for p in pairs)
        shared = share(not same_seed_accuracy(*p).excludes(same_seed) for p in pairs)
        paired = share(not mean_difference(*p, paired=True).excludes(1) for p in pairs)
        print(
            f"m = {num_runs}, seeds correlated {correlation}: independent-seed Acc "
            f"{independent:.3f}, same-seed Acc {shared:.3f}, paired t {paired:.3f}"
        )


def bias_table(trials: int) -> None:
    """Two pipelines whose gain L − C has 4 times the variance of C: the share of bias is 0.8.

    B's calibrated loss is higher by one standard deviation of C, and its gain by three: a quarter
    of the difference survives calibration.
    """
    print("\nCoverage of 95 % intervals of bias_share and of surviving_share")
    rng = np.random.default_rng(4)
    gains = {"normal": lambda z: 2 * z, "squares": lambda z: np.sqrt(2) * (z**2 - 1)}
    for (name, gain), paired, num_runs in itertools.product(
        gains.items(), (False, True), (6, 10, 20, 60)
    ):
        # Of each normal, between pipelines with the same seeds.
        weight = 0.9 * paired
        normal = weight * rng.normal(size=(2, trials, 1, num_runs))
        normal = normal + np.sqrt(1 - weight**2) * rng.normal(size=(2, trials, 2, num_runs))
        is_b = np.array([[0.0], [1.0]])
        calibrated = normal[0] + is_b
        plain = calibrated + gain(normal[1]) + 3 * is_b
        shares, surviving = [], []
        for losses, corrected in zip(plain, calibrated, strict=True):
            shares.append(not bias_share(losses, corrected, paired=paired).excludes(0.8))
            surviving.append(not surviving_share(losses, corrected, paired=paired).excludes(0.25))
        seeds = "shared" if paired else "own"
        print(
            f"gains {name:<8} seeds {seeds:<7} m = {num_runs:<3} bias {share(shares):.3f}, "
            f"surviving {share(surviving):.3f}"
        )


if __name__ == "__main__":
    main()
