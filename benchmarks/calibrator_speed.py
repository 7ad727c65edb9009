"""Seconds of a direct fit beside scikit-learn's: `./dev run python benchmarks/calibrator_speed.py`.

Synthetic logits ~ N(-2, 1.5), labels from a sigmoid of a monotone map with two kinks, float32. All
in one process and in turn, so that the machine's load falls on all alike. Times are
medians. The first call of each calibrator is timed in a process of its own, import excluded. The
last table compares the mean log loss (float64, on the rows) with that of a minimisation on the
rows.
"""

import argparse
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import sklearn.isotonic
import sklearn.linear_model

from keras_calibration.layers import ILPS, BiasCorrection, PlattScaling, TemperatureScaling

CALIBRATORS: dict[str, Callable[[], Any]] = {
    "ILPS": ILPS,
    'ILPS, smoothness="auto"': lambda: ILPS(smoothness="auto"),
    "PlattScaling": PlattScaling,
    "TemperatureScaling": TemperatureScaling,
    "BiasCorrection": BiasCorrection,
}
ISOTONIC, LOGISTIC = "IsotonicRegression", "LogisticRegression(C=inf)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calibrators", nargs="+", choices=CALIBRATORS, default=list(CALIBRATORS))
    parser.add_argument("--first", help="internal: time the first fit of this calibrator")
    arguments = parser.parse_args()
    if arguments.first:
        logits, labels = make_rows(int(arguments.rows[0]))
        print(seconds(lambda: fit_new(arguments.first, logits, labels)))
        return
    for num_rows in map(int, arguments.rows):
        speed_table(num_rows, arguments.rounds, arguments.calibrators)
    exactness_table(int(arguments.rows[0]))


def make_rows(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(-2, 1.5, num_rows).astype(np.float32)
    curve = np.interp(logits, [-12, -3, -1, 8], [-12.5, -3.5, -2.5, 7.5])
    labels = generator.random(num_rows) < 1 / (1 + np.exp(-curve))
    return logits, labels.astype(np.float32)


def fit_new(name: str, logits: np.ndarray, labels: np.ndarray) -> None:
    CALIBRATORS[name]().fit(logits, labels)


def speed_table(num_rows: int, num_rounds: int, calibrators: list[str]) -> None:
    logits, labels = make_rows(num_rows)
    column = logits[:, None]
    fits: dict[str, Callable[[], Any]] = {
        ISOTONIC: lambda: sklearn.isotonic.IsotonicRegression().fit(logits, labels),
        LOGISTIC: lambda: sklearn.linear_model.LogisticRegression(C=np.inf).fit(column, labels),
    }
    for name in calibrators:
        fits[name] = functools.partial(fit_new, name, logits, labels)
    times: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(num_rounds):
        for name, fit in fits.items():
            times[name].append(seconds(fit))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"\nSeconds of a fit to {num_rows:,} rows, median of {num_rounds} rounds")
    print(f"{'':<26} {'seconds':>9} {'first call':>11} {'isotonic':>10} {'logistic':>10}")
    for name, value in median.items():
        first = f"{first_call(name, num_rows):.4f}" if name in CALIBRATORS else ""
        ratios = [f"{median[rival] / value:.1f}x" for rival in (ISOTONIC, LOGISTIC)]
        print(f"{name:<26} {value:>9.4f} {first:>11} {ratios[0]:>10} {ratios[1]:>10}")


def exactness_table(num_rows: int) -> None:
    logits, labels = make_rows(num_rows)
    wide = logits.astype(np.float64)
    designs = {
        "PlattScaling": np.stack([np.ones_like(wide), wide], axis=1),
        "TemperatureScaling": wide[:, None],
        "BiasCorrection": np.ones((num_rows, 1)),
    }
    print(f"\nMean log loss of {num_rows:,} rows, less that of a minimisation on the rows")
    for name, design in designs.items():
        layer = CALIBRATORS[name]()
        summary = layer.fit(logits, labels)
        offset = wide if name == "BiasCorrection" else 0.0

        def loss(theta: np.ndarray, design: Any = design, offset: Any = offset) -> tuple:
            curve = design @ theta + offset
            residual = 0.5 * (1 + np.tanh(curve / 2)) - labels
            value = np.mean(np.logaddexp(0, curve) - labels * curve)
            return value, design.T @ residual / num_rows

        best = scipy.optimize.minimize(
            loss, np.zeros(design.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9}
        )
        print(f"{name:<26} {summary.log_loss_in_sample - best.fun:>12.1e}")
    print("Bound: 1e-8.")


def first_call(name: str, num_rows: int) -> float:
    command = [sys.executable, __file__, "--first", name, "--rows", str(num_rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
