"""Excess log loss over a known truth: `./dev run python benchmarks/known_truth.py`.

Logits ~ N(m, 1.3²), clicks from σ(truth(l)): a straight line, a line with one kink, a line with
waves; m makes the click rate the one named. Each method is fitted to a fresh sample; the table is
the mean Kullback-Leibler divergence of its probabilities from the true ones over the logits' own
distribution, in 1e-6 nats, with its standard error over the samples.
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import sklearn.isotonic
from keras import ops

from keras_calibration.layers import ILPS, PlattScaling

SPREAD = 1.3
SETTINGS = ((0.001, 1_000_000), (0.03, 100_000))
NUM_TEST_ROWS = 200_000

# The true logit as a function of l - m, less m.
TRUTHS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "affine": lambda away: 0.8 * away - 0.25,
    "kinked": lambda away: np.where(away < 0, 1.4, 0.45) * away + 0.1,
    "wiggly": lambda away: away + 0.35 * np.sin(2 * away) - 0.2,
}
Curve = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=20, help="samples of each cell")
    num_samples = parser.parse_args().samples
    cells = list(itertools.product(SETTINGS, TRUTHS))
    print(f"Mean KL to the truth, 1e-6 nats; {num_samples} samples a cell (standard error)")
    titles = "".join(f"{f'{rate:g} {truth}':>20}" for (rate, _), truth in cells)
    print(f"{'':<28}{titles}")
    columns = [divergences(rate, n, TRUTHS[truth], num_samples) for (rate, n), truth in cells]
    for method in METHODS:
        print(f"{method:<28}", end="")
        for column in columns:
            values = 1e6 * np.array(column[method])
            error = values.std(ddof=1) / np.sqrt(num_samples)
            print(f"{f'{values.mean():.1f} ({error:.1f})':>20}", end="")
        print()


def divergences(
    rate: float, num_rows: int, truth: Curve, num_samples: int
) -> dict[str, list[float]]:
    normal = np.random.default_rng(0).normal(0, SPREAD, NUM_TEST_ROWS)
    centre = centre_of(rate, truth, normal)
    test, expected = centre + normal, centre + truth(normal)
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in range(num_samples):
        generator = np.random.default_rng(1 + seed)
        away = generator.normal(0, SPREAD, num_rows)
        labels = (generator.random(num_rows) < sigmoid(centre + truth(away))).astype(float)
        for method, fit in METHODS.items():
            found[method].append(divergence(expected, fit(centre + away, labels)(test)))
    return found


def centre_of(rate: float, truth: Curve, normal: np.ndarray) -> float:
    low, high = -20.0, 10.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = sigmoid(middle + truth(normal)).mean() > rate
        low, high = (low, middle) if above else (middle, high)
    return low


def divergence(truth: np.ndarray, fitted: np.ndarray) -> float:
    clicks = sigmoid(truth) * (np.logaddexp(0, -fitted) - np.logaddexp(0, -truth))
    negatives = sigmoid(-truth) * (np.logaddexp(0, fitted) - np.logaddexp(0, truth))
    return float(np.mean(clicks + negatives))


def layer(make: Callable) -> Callable[[np.ndarray, np.ndarray], Curve]:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Curve:
        calibrator = make()
        calibrator.fit(logits, labels)
        return lambda test: np.asarray(ops.convert_to_numpy(calibrator(test)), np.float64)

    return fit


def isotonic(logits: np.ndarray, labels: np.ndarray) -> Curve:
    model = sklearn.isotonic.IsotonicRegression(out_of_bounds="clip").fit(logits, labels)
    return lambda test: logit(model.predict(test), len(labels))


def binning(logits: np.ndarray, labels: np.ndarray) -> Curve:
    edges = np.quantile(logits, np.arange(1, 20) / 20)
    bins = np.searchsorted(edges, logits)
    rates = np.bincount(bins, labels) / np.bincount(bins)
    return lambda test: logit(rates[np.searchsorted(edges, test)], len(labels))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * logits))


def logit(probabilities: np.ndarray, num_rows: int) -> np.ndarray:
    # Isotonic regression and binning give 0 and 1, which cost infinitely much: half a click in all
    # rows is put in their place.
    inside = np.clip(probabilities, 0.5 / num_rows, 1 - 0.5 / num_rows)
    return np.log(inside) - np.log1p(-inside)


METHODS: dict[str, Callable[[np.ndarray, np.ndarray], Curve]] = {
    "none": lambda logits, labels: lambda test: test,
    "PlattScaling": layer(PlattScaling),
    "isotonic regression": isotonic,
    "20 bins of equal mass": binning,
    "ILPS, paper": layer(ILPS.from_paper),
    "ILPS, paper, linear ends": layer(lambda: ILPS.from_paper(extrapolation="linear")),
    "ILPS (smoothness 1)": layer(ILPS),
    "ILPS, smoothness 10": layer(lambda: ILPS(smoothness=10)),
    'ILPS, smoothness "auto"': layer(lambda: ILPS(smoothness="auto")),
}


if __name__ == "__main__":
    main()
