"""The papers' synthetic experiments over many test sets, next to the published results.

    ./dev run python examples/calibrated_metric/synthetic.py

Pipeline A regresses on all 20 features and pipeline B on 19 of them, so A is better by
construction. A seed is a training set of 1000 rows. How often do single runs detect A, by the plain
loss and by the calibrated ones? Experiment B.1 is linear regression with the quadratic loss, B.2
logistic regression with the log loss (Fan, Si, Song, Zhang, arXiv 2401.16692, appendix B, and its
other version *Towards Accurate Deep Learning Model Selection*).

The papers used one test set, as far as they report. Here each round draws a new one.

How much calibration can gain here follows from the number of features, since it removes the noise
of one coefficient out of 21 (`linear_law`, `logistic_law`; derived in README.md). The figures are
written to `synthetic.json`, from which `section` makes the tables of README.md.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray
from scipy import special

from keras_calibration.seeds import metric_accuracy

Array = NDArray[np.float64]
NUM_FEATURES, NUM_TRAIN, NUM_SCORED = 20, 1000, 10_000
FEATURE_MEAN, FEATURE_STD = -0.05, 0.25
# Σ_e = 2 is a standard deviation: as a variance it gives half the published losses.
NOISE_MEAN, NOISE_STD = 1.0, 2.0
FORMS = ("plain", "hold-out", "in-sample", "cross-fitted")
# Features, training rows and runs of the linear regressions whose law is simulated.
SIMULATED = ((2, 100, 60_000), (5, 100, 60_000), (20, 100, 60_000), (20, 1000, 12_000))


class Experiment(NamedTuple):
    """One of the two experiments.

    Args:
        title: Title in the table.
        draw: Draws rows of the test set or the training sets, `(rng, shape) → (x, y)`.
        fit: `(x, y) → coefficients`, shape `(num_runs, num_features + 1)`.
        losses: `(outputs, labels, num_bias_rows) → {form: (num_runs,)}`.
        law: Standard deviations of the plain and the calibrated loss over training sets,
            `(num_features, num_train, num_rows) → (plain, calibrated)`.
        num_bias_rows: Rows of the hold-out that the papers fit the bias on.
        published: Name of a figure → its values in the versions of the paper.
    """

    title: str
    draw: Callable[..., tuple[Array, Array]]
    fit: Callable[[Array, Array], Array]
    losses: Callable[[Array, Array, int], dict[str, Array]]
    law: Callable[[int, int, float], tuple[float, float]]
    num_bias_rows: int
    published: dict[str, tuple[float, ...]]


class Rounds(NamedTuple):
    """The results, one value for each test set.

    Args:
        accuracy: Form of the loss → detection rate in percent, shape `(num_rounds,)`.
        mean: Form → mean loss of A over the seeds.
        std: Form → standard deviation of A's loss over the seeds.
    """

    accuracy: dict[str, Array]
    mean: dict[str, Array]
    std: dict[str, Array]


def main() -> None:
    """Runs both experiments, and prints their tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40, help="test sets (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=100, help="of each (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the results")
    arguments = parser.parse_args()
    started = time.monotonic()
    results = []
    for experiment in (LINEAR, LOGISTIC):
        print(f"\n{experiment.title}")
        rounds = run(experiment, arguments.rounds, arguments.seeds, seed=0, progress=True)
        results.append((experiment, rounds))
    arguments.output.mkdir(parents=True, exist_ok=True)
    stored = to_json(results, simulate_laws(seed=0))
    (arguments.output / "synthetic.json").write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    print(f"\n{section(stored)}\n\nDone in {time.monotonic() - started:.0f} s.")


def run(
    experiment: Experiment, num_rounds: int, num_seeds: int, seed: int, progress: bool = False
) -> Rounds:
    """Draws a test set in each round, and one training set per seed for each pipeline."""
    bar = keras.utils.Progbar(num_rounds, verbose=int(progress), unit_name="test set")
    rounds: list[dict[str, tuple[float, float, float]]] = []
    for rng in np.random.default_rng(seed).spawn(num_rounds):
        x, labels = experiment.draw(rng, (experiment.num_bias_rows + NUM_SCORED,))
        sides = []
        # A and B are trained on different rows: no seed is shared.
        for num_used in (NUM_FEATURES, NUM_FEATURES - 1):
            train, train_labels = experiment.draw(rng, (num_seeds, NUM_TRAIN))
            coefficients = experiment.fit(train[..., :num_used], train_labels)
            outputs = with_intercept(x[:, :num_used]) @ coefficients.T
            sides.append(experiment.losses(outputs, labels, experiment.num_bias_rows))
        a, b = sides
        rounds.append(
            {
                form: (
                    100 * metric_accuracy(a[form], b[form]),
                    float(a[form].mean()),
                    float(a[form].std(ddof=1)),
                )
                for form in FORMS
            }
        )
        bar.add(1)
    # The accuracies, means and standard deviations, as `Rounds` has them.
    parts = [{form: np.array([v[form][k] for v in rounds]) for form in FORMS} for k in range(3)]
    return Rounds(*parts)


def draw_features(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Independent normal features."""
    standard: Array = rng.standard_normal((*shape, NUM_FEATURES))
    return FEATURE_MEAN + FEATURE_STD * standard


def draw_linear(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """B.1: Y = Σ x + ε."""
    x = draw_features(rng, shape)
    return x, x.sum(-1) + NOISE_MEAN + NOISE_STD * rng.standard_normal(shape)


def draw_logistic(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """B.2: Y = 1 with probability σ(Σ x)."""
    x = draw_features(rng, shape)
    return x, (rng.random(shape) < special.expit(x.sum(-1))).astype(np.float64)


def with_intercept(x: Array) -> Array:
    """The features and a column of ones."""
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)


def fit_linear(x: Array, labels: Array) -> Array:
    """Least squares of all runs at once, by the normal equations."""
    x = with_intercept(x)
    transposed = np.swapaxes(x, 1, 2)
    coefficients = np.linalg.solve(transposed @ x, transposed @ labels[..., None])
    return np.asarray(coefficients[..., 0], np.float64)


def fit_logistic(x: Array, labels: Array) -> Array:
    """Logistic regressions without a penalty, all runs at once, by Newton's method."""
    x = with_intercept(x)
    transposed = np.swapaxes(x, 1, 2)
    coefficients = np.zeros((len(x), x.shape[-1], 1))
    for _ in range(25):
        probabilities = special.expit(x @ coefficients)
        gradient = transposed @ (labels[..., None] - probabilities)
        step = np.linalg.solve(transposed @ (x * probabilities * (1 - probabilities)), gradient)
        coefficients += step
        if np.abs(step).max() < 1e-8:
            return coefficients[..., 0]
    raise ValueError(
        "Logistic regressions must have a finite optimum. Received: training sets of "
        f"{x.shape[1]} rows, at least one of which can be separated. Use more rows for each run."
    )


def quadratic_losses(outputs: Array, labels: Array, num_bias_rows: int) -> dict[str, Array]:
    """The quadratic loss of each run and its calibrated forms, where c is the mean residual."""
    residuals = labels[:, None] - outputs

    def loss(scored: slice, fitted: slice) -> Array:
        error: Array = residuals[scored] - residuals[fitted].mean(0)
        return np.asarray(np.mean(error**2, axis=0))

    plain = np.mean(residuals**2, axis=0)
    return {"plain": plain, **calibrated_forms(loss, num_bias_rows, len(labels))}


def log_losses(outputs: Array, labels: Array, num_bias_rows: int) -> dict[str, Array]:
    """The log loss of each run and its calibrated forms, where c is the bias of the logits."""
    y = labels[:, None]

    def plain(rows: slice, bias: Array | float) -> Array:
        logits = outputs[rows] + bias
        return np.asarray(np.mean(np.logaddexp(0, logits) - y[rows] * logits, axis=0))

    def loss(scored: slice, fitted: slice) -> Array:
        return plain(scored, fitted_bias(outputs[fitted], y[fitted]))

    everything = plain(slice(None), 0.0)
    return {"plain": everything, **calibrated_forms(loss, num_bias_rows, len(labels))}


def fitted_bias(logits: Array, labels: Array) -> Array:
    """The bias c of each run with Σ σ(l + c) = Σ y, by Newton's method."""
    bias = np.zeros(logits.shape[1])
    for _ in range(25):
        probabilities = special.expit(logits + bias)
        step = (labels - probabilities).sum(0) / (probabilities * (1 - probabilities)).sum(0)
        bias += step
        if np.abs(step).max() < 1e-10:
            break
    return bias


def calibrated_forms(
    loss: Callable[[slice, slice], Array], num_bias_rows: int, num_rows: int
) -> dict[str, Array]:
    """The loss with the bias from a hold-out, in-sample, and cross-fitted."""
    everything, half = slice(None), num_rows // 2
    first, second = slice(None, half), slice(half, None)
    folds = half * loss(first, second) + (num_rows - half) * loss(second, first)
    return {
        "hold-out": loss(slice(num_bias_rows, None), slice(None, num_bias_rows)),
        "in-sample": loss(everything, everything),
        "cross-fitted": folds / num_rows,
    }


def expected_quadratic_losses() -> dict[str, float]:
    """Exact expectations in B.1, over training and test sets."""
    n, d = NUM_TRAIN, NUM_FEATURES
    num_bias_rows, num_rows = LINEAR.num_bias_rows, LINEAR.num_bias_rows + NUM_SCORED
    slopes = NOISE_STD**2 * (1 + d / (n - d - 2))
    return {
        "plain": slopes * (1 + 1 / n),
        "hold-out": slopes * (1 + 1 / num_bias_rows),
        "in-sample": slopes * (1 - 1 / num_rows),
        "cross-fitted": slopes * (1 + 2 / num_rows),
    }


def linear_law(
    num_features: int, num_train: int, num_rows: float = math.inf, variance: float = NOISE_STD**2
) -> tuple[float, float]:
    """Standard deviations of the plain and the calibrated quadratic loss over training sets.

    With d normal features, n training rows and noise of variance V, the expected loss after the
    correction is C = V (1 + χ²_d / χ²_{n−d}), and before it L = C (1 + χ²₁ / n), all independent.
    Both are exact. On N test rows, both vary by 4 V E[C − V] / N more.
    """
    d, n = num_features, num_train
    excess = d / (n - d - 2)
    calibrated = 2 * d * (n - 2) / ((n - d - 2) ** 2 * (n - d - 4))
    plain = calibrated * ((1 + 1 / n) ** 2 + 2 / n**2) + 2 * (1 + excess) ** 2 / n**2
    plain += 4 * ((1 + excess) * (1 + 1 / n) - 1) / num_rows
    calibrated += 4 * excess / num_rows
    return variance * math.sqrt(plain), variance * math.sqrt(calibrated)


def logistic_law(
    num_features: int, num_train: int, num_rows: float = math.inf
) -> tuple[float, float]:
    """The same for the log loss, to leading order in 1/n: L − H = χ²_{d+1} / 2n, C − H = χ²_d / 2n.

    H is the log loss of the true probabilities. On N test rows the loss varies by E[L − H] · 2/N
    more.
    """

    def deviation(parameters: int) -> float:
        return math.sqrt(parameters / num_train * (0.5 / num_train + 1 / num_rows))

    return deviation(num_features + 1), deviation(num_features)


def simulate_laws(seed: int) -> list[dict[str, float]]:
    """The law of the linear losses in several sizes, simulated and exact.

    Returns:
        For each size: the ratio of standard deviations, simulated, exact and to leading order;
        `excess`, the mean of L / C, which is 1 + 1/n by the papers' Theorem 4; and `scaled`,
        Var((1 + 1/n) C) / Var(L), which is below 1 by their Corollary 5.
    """
    laws = []
    for num_features, num_train, num_runs in SIMULATED:
        rng = np.random.default_rng([seed, num_features, num_train])
        plain, calibrated = simulate_linear(num_features, num_train, num_runs, rng)
        ratio = calibrated.std() / plain.std()
        # The error of a ratio of correlated deviations, by the delta method.
        plain_z, calibrated_z = ((v - v.mean()) / v.std() for v in (plain, calibrated))
        error = ratio * np.std(calibrated_z**2 - plain_z**2) / 2 / math.sqrt(num_runs)
        exact = linear_law(num_features, num_train)
        quotients = plain / calibrated
        laws.append(
            {
                "num_features": num_features,
                "num_train": num_train,
                "num_runs": num_runs,
                "simulated": float(ratio),
                "error": float(error),
                "exact": exact[1] / exact[0],
                "leading": math.sqrt(num_features / (num_features + 1)),
                "excess": float(quotients.mean()),
                "excess_error": float(quotients.std()) / math.sqrt(num_runs),
                "scaled": float(ratio**2) * (1 + 1 / num_train) ** 2,
            }
        )
    return laws


def simulate_linear(
    num_features: int, num_train: int, num_runs: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Expected losses of fits to noise of variance 1, before and after the correction."""
    coefficients = []
    for start in range(0, num_runs, 200):
        shape = (min(200, num_runs - start), num_train)
        x = rng.standard_normal((*shape, num_features))
        coefficients.append(fit_linear(x, rng.standard_normal(shape)))
    squares = np.concatenate(coefficients) ** 2
    calibrated = 1 + squares[:, :-1].sum(1)
    return calibrated + squares[:, -1], calibrated


def predicted_gain(accuracy: Array | float, ratio: float) -> Array:
    """The gain in accuracy, in points, where both standard deviations shrink by `ratio`.

    Accuracy is Φ(Δ / √(s_a² + s_b²)) for the difference Δ of normal losses.
    """
    distance = special.ndtri(np.divide(accuracy, 100))
    return np.asarray(100 * special.ndtr(distance / ratio) - accuracy)


def needed_ratio(accuracy: float, gain: float) -> float:
    """The ratio of standard deviations that gives this gain in accuracy, both in percent."""
    plain, calibrated = special.ndtri(np.divide([accuracy, accuracy + gain], 100))
    return float(plain / calibrated)


def expected(experiment: Experiment, rounds: Rounds) -> dict[str, float]:
    """What the theory says of the figures."""
    num_rows = experiment.num_bias_rows + NUM_SCORED
    plain, calibrated = experiment.law(NUM_FEATURES, NUM_TRAIN, num_rows)
    # The noise of the bias that the hold-out fits adds less than 1 % to the variance.
    _, hold_out = experiment.law(NUM_FEATURES, NUM_TRAIN, NUM_SCORED)
    values = {
        "std, plain": plain,
        "std, in-sample": calibrated,
        "std, hold-out": hold_out,
        "std ratio, in-sample": calibrated / plain,
        "std ratio, hold-out": hold_out / plain,
        "gain, in-sample": float(
            predicted_gain(rounds.accuracy["plain"], calibrated / plain).mean()
        ),
    }
    if experiment is LINEAR:
        values |= {f"mean, {form}": value for form, value in expected_quadratic_losses().items()}
    return values


def figures(rounds: Rounds) -> dict[str, tuple[float, float]]:
    """Each figure of the table with its standard error over the test sets."""
    plain = rounds.accuracy["plain"]
    series = {f"accuracy, {form}": rounds.accuracy[form] for form in FORMS}
    series |= {f"gain, {form}": rounds.accuracy[form] - plain for form in FORMS[1:]}
    series |= {f"mean, {form}": rounds.mean[form] for form in FORMS}
    series |= {f"std, {form}": rounds.std[form] for form in FORMS}
    for form in ("hold-out", "in-sample"):
        series[f"std ratio, {form}"] = rounds.std[form] / rounds.std["plain"]
    return {
        name: (float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))
        for name, values in series.items()
    }


def num_digits(name: str) -> int:
    """Decimals of a figure."""
    if name.startswith(("accuracy", "gain")):
        return 2
    return 5 if name.startswith("std,") else 4


def to_json(runs: list[tuple[Experiment, Rounds]], laws: list[dict[str, float]]) -> dict[str, Any]:
    """The figures of the study as JSON values."""
    experiments = {}
    for experiment, rounds in runs:
        experiments[experiment.title] = {
            "num_rounds": len(rounds.accuracy["plain"]),
            "figures": figures(rounds),
            "expected": expected(experiment, rounds),
            "published": experiment.published,
        }
    return {"experiments": experiments, "laws": laws}


def section(stored: dict[str, Any]) -> str:
    """The tables of the study in Markdown, from the values of `to_json`."""
    parts = []
    for title, values in stored["experiments"].items():
        rows = []
        for name, (value, error) in values["figures"].items():
            digits = num_digits(name)
            theory = values["expected"].get(name)
            published = values["published"].get(name, ())
            if theory is None and not published and name.startswith(("mean", "std")):
                continue
            texts = ["" if theory is None else f"{theory:.{digits}f}"]
            texts.append(", ".join(f"{v:g}" for v in published))
            rows.append([name, f"{value:.{digits}f} ± {error:.{digits}f}", *texts])
        parts.append(_table([title, "measured", "expected", "published"], rows))
    return "\n\n".join([*parts, needed_table(stored), law_table(stored["laws"])])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are not aligned, to fit into README.md."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def needed_table(stored: dict[str, Any]) -> str:
    """What the published standard deviations predict, and what the published gains need."""
    rows = []
    for title, values in stored["experiments"].items():
        published = values["published"]
        names = ("accuracy, plain", "gain, hold-out", "std, plain", "std, hold-out")
        for accuracy, gain, plain, calibrated in zip(*(published[n] for n in names), strict=True):
            ratio = calibrated / plain
            by_ratio, needed = predicted_gain(accuracy, ratio), needed_ratio(accuracy, gain)
            row = [title.split(",")[0], f"{accuracy:g} %", f"{ratio:.3f}", f"{by_ratio:+.2f}"]
            rows.append([*row, f"{gain:+.2f}", f"{needed:.3f}"])
    head = ["published", "accuracy, plain", "std ratio", "gain by this ratio", "published gain"]
    return _table([*head, "std ratio for this gain"], rows)


def law_table(laws: list[dict[str, float]]) -> str:
    """The ratio of standard deviations for several numbers of features and rows."""
    rows = []
    for law in laws:
        row = [f"{law['num_features']}", f"{law['num_train']}"]
        row.append(f"{law['simulated']:.4f} ± {law['error']:.4f}")
        row += [f"{law['exact']:.4f}", f"{law['leading']:.4f}"]
        row.append(f"{law['excess']:.5f} ± {law['excess_error']:.5f}")
        rows.append([*row, f"{1 + 1 / law['num_train']:.5f}", f"{law['scaled']:.4f}"])
    head = ["features d", "training rows n", "simulated std ratio", "exact", "√(d/(d+1))"]
    head += ["Theorem 4: mean of L / C", "1 + 1/n", "Corollary 5: Var((1 + 1/n) C) / Var(L)"]
    return _table(head, rows)


LINEAR = Experiment(
    "B.1 linear regression, quadratic loss",
    draw=draw_linear,
    fit=fit_linear,
    losses=quadratic_losses,
    law=linear_law,
    num_bias_rows=1000,
    published={
        "accuracy, plain": (93.49, 93.5),
        "accuracy, hold-out": (95.81, 94.53),
        "gain, hold-out": (2.32, 1.03),
        "mean, plain": (4.067, 4.067),
        "mean, hold-out": (4.070, 4.069),
        "std, plain": (0.0295, 0.0298),
        "std, hold-out": (0.0286, 0.0286),
        "std ratio, hold-out": (0.969, 0.960),
    },
)
LOGISTIC = Experiment(
    "B.2 logistic regression, log loss",
    draw=draw_logistic,
    fit=fit_logistic,
    losses=log_losses,
    law=logistic_law,
    num_bias_rows=2000,
    published={
        "accuracy, plain": (79.62, 85.93),
        "accuracy, hold-out": (83.7, 89.36),
        "gain, hold-out": (4.08, 3.43),
        "mean, plain": (0.5366, 0.5249),
        "mean, hold-out": (0.5343, 0.5219),
        "std, plain": (0.00385, 0.00376),
        "std, hold-out": (0.00370, 0.00357),
        "std ratio, hold-out": (0.961, 0.949),
    },
)

if __name__ == "__main__":
    main()
