"""Calibration of rows in order of time whose level moves, with a known truth.

`./dev run python benchmarks/time_levels.py [--seeds 10] [--rows 20000]`: a base logit, fifty field
values, and a level that moves in one of nine ways. The calibrations are fitted to the rows, and
scored on the next quarter as many: mean and standard error over the seeds of what they lose to the
truth, in 1e-6 nats per row.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable

import numpy as np
from scipy.special import expit

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))

from keras_calibration import calibrate_scores
from keras_calibration.layers import ILPS, FieldBias
from markdown_table import markdown_table

NUM_VALUES = 50
# The level at the times of the rows; the rows to score have times above 1.
LEVELS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "none": lambda time, _: 0 * time,
    "step at .7": lambda time, _: 0.5 * (time > 0.7),
    "step at .95": lambda time, _: 0.5 * (time > 0.95),
    "straight line": lambda time, _: 0.6 * time,
    "random walk": lambda time, rng: np.cumsum(rng.normal(0, 0.5, len(time))) * time[1] ** 0.5,
    "eight periods": lambda time, _: 0.5 * np.sin(16 * np.pi * time),
    "four periods": lambda time, _: 0.5 * np.sin(8 * np.pi * (time - 1) + np.pi / 2),
    "two periods": lambda time, _: 0.5 * np.sin(4 * np.pi * (time - 1) + np.pi / 2),
    "independent days": lambda time, rng: rng.normal(0, 0.4, 81)[(time * 64).astype(int)],
}


def losses(level: str, num_rows: int, seed: int) -> list[float]:
    """What raw, random folds, blocks of time, and `FieldBias` without and with a level lose."""
    rng = np.random.default_rng(seed)
    number = num_rows + num_rows // 4
    logits, field = rng.normal(-2, 1, number), rng.integers(0, NUM_VALUES, number)
    offsets = rng.normal(0, 0.3, NUM_VALUES)
    truth = 1.1 * logits + 0.2 + offsets[field] + LEVELS[level](np.arange(number) / num_rows, rng)
    labels = (rng.random(number) < expit(truth)).astype(float)
    fitted, new = slice(num_rows), slice(num_rows, None)

    def lost(eta: np.ndarray) -> float:
        eta, true = np.asarray(eta, "float64").reshape(-1), truth[new]
        change = np.logaddexp(0, eta) - np.logaddexp(0, true) - expit(true) * (eta - true)
        return 1e6 * float(change.mean())

    rows, columns = (logits[fitted], labels[fitted]), {"field": field[fitted]}
    excess = [lost(logits[new])]
    for time in (None, "order"):
        model = calibrate_scores(
            *rows, columns, from_logits=True, fields={"field": NUM_VALUES}, methods="quick",
            verbose=0, time=time,
        )  # fmt: skip
        served = logits[new].astype("float32")[:, None]
        excess.append(lost(model.head(served, {"field": field[new]})))
    for time in (None, "order"):
        curve = ILPS(smoothness="auto", monotonic="strict")
        head = FieldBias({"field": NUM_VALUES}, curve, follows_time=time is not None)
        head.fit(*rows, columns, time=time)
        excess.append(lost(head(logits[new], {"field": field[new]})))
    return excess


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args()
    names = ["raw", "calibrate", "calibrate, time", "FieldBias", "FieldBias, follows_time"]
    rows = []
    for level in LEVELS:
        excess = np.array([losses(level, options.rows, seed) for seed in range(options.seeds)])
        errors = excess.std(axis=0, ddof=1) / np.sqrt(options.seeds)
        change = excess[:, 2] - excess[:, 1]
        change_error = change.std(ddof=1) / np.sqrt(options.seeds)
        cells = [
            f"{mean:,.0f} ± {error:,.0f}"
            for mean, error in zip(excess.mean(axis=0), errors, strict=True)
        ]
        rows.append([level, *cells, f"{change.mean():+,.0f} ± {change_error:,.0f}"])
        print(rows[-1], flush=True)
    print(markdown_table(["level", *names, "time less none"], rows))


if __name__ == "__main__":
    main()
