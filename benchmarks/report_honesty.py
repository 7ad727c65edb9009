"""Is the figure that `calibrate` reports right? `./dev run python benchmarks/report_honesty.py`.

Samples are drawn from a known truth: a model that is right (null), nearly right (weak) or wrong
(strong). The candidates of `calibrate(methods="quick")` are cross-fitted on each, on the logit
alone or with four fields and four numeric columns, weighed and scored as `calibrate` does it. The
change of the log loss that it reports is compared with the true change of the model that it
returns, by the true probabilities of fresh rows.

Printed for each cell: how often the model is changed, and the mean true change over all samples. Of
the samples that change the model: the reported and the true change, means in 1e-5 nats per row; the
mean of their difference in reported standard errors; how often the true change is within the
interval of 90 %; and how often the change makes the model worse. A model that is right can only be
made worse.

With --cache FOLDER, the logits of the fits are kept there in parts of fifty samples, and not
computed again: a run goes on where it stopped, and another rule is measured without fits.
"""

import argparse
import pathlib
import pickle
import sys
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from scipy.special import expit
from scipy.stats import norm

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))

from calibration_records._progress import ProgressBar
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import row_log_losses
from keras_calibration.calibration.candidate_fits import Race
from keras_calibration.calibration.candidates import IDENTITY, QUICK, candidates
from keras_calibration.calibration.cross_fitted_scores import combined
from keras_calibration.calibration.splits import splits_of
from keras_calibration.layers.fit import Fit
from markdown_table import markdown_table

FIELDS = {"site": 30, "device": 10, "zip": 100, "kind": 5}
NUMERIC = ("age", "hour", "price", "length")
EFFECTS = {"null": 0.0, "weak": 0.5, "strong": 2.0}
COLUMNS = ("logit", "eight")
PART = 50  # samples of a file of the cache
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """The fits of the candidates to a sample.

    Args:
        labels: Labels of the rows (n,).
        fold: Their folds (n,).
        cross_fitted: Name of each candidate → its cross-fitted logits (n,).
        fresh: Name of each candidate → the logits of the fresh rows (m,) by its fit to all rows.
    """

    labels: Array
    fold: Array
    cross_fitted: dict[str, Array]
    fresh: dict[str, Array]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--columns", nargs="*", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--effects", nargs="*", choices=list(EFFECTS), default=list(EFFECTS))
    parser.add_argument("--rows", nargs="*", type=int, default=[300, 1_000, 3_000])
    parser.add_argument("--samples", type=int, default=PART, help="samples of each cell")
    parser.add_argument("--cache", type=pathlib.Path, help="a folder for the logits of the fits")
    options = parser.parse_args()
    lines = []
    for columns in options.columns:
        for num_rows in options.rows:
            for effect in options.effects:
                cell = (columns, effect, num_rows)
                _, _, truth = fresh_rows(columns, effect)
                changes = [
                    reported_and_true(sample, truth)
                    for first in range(0, options.samples, PART)
                    for sample in samples(cell, first, options)
                ]
                lines.append([columns, f"{num_rows:,}", effect, *figures(np.array(changes))])
                print(*lines[-1], flush=True)
    header = "columns|rows|effect|samples|changed|true, all|reported|true|away|within 90 %|worse"
    print(markdown_table(header.split("|"), lines))


def samples(cell: tuple[str, str, int], first: int, options: Any) -> list[Sample]:
    """A part of the samples of a cell, from the cache where it has them."""
    numbers = range(first, min(first + PART, options.samples))
    if options.cache is None:
        return [sample_of(*cell, number) for number in numbers]
    file = options.cache / f"{'-'.join(map(str, (*cell, first, len(numbers))))}.pickle"
    if not file.exists():
        part = [sample_of(*cell, number) for number in numbers]
        options.cache.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(part))
    return pickle.loads(file.read_bytes())


def reported_and_true(sample: Sample, truth: Array) -> tuple[float, float, float]:
    """The change that the report states, its error, and the true change."""
    rows = Rows(sample.labels, sample.labels, None)
    fitted = {name: logits.astype(float) for name, logits in sample.cross_fitted.items()}
    choice = combined(fitted, rows, sample.fold)
    parts = [v * sample.fresh[name].astype(float) for name, v in choice.weights.items()]
    mean = np.sum(parts, axis=0) + choice.bias
    before = row_log_losses(truth, sample.fresh[IDENTITY].astype(float))
    true = float(np.mean(row_log_losses(truth, mean) - before))
    return *choice.expected_change, true


def figures(changes: Array) -> list[str]:
    """A row of the table."""
    is_changed = changes[:, 1] > 0
    shown = [f"{len(changes):,}", f"{is_changed.mean():.0%}", f"{1e5 * changes[:, 2].mean():+.1f}"]
    if is_changed.sum() < 2:
        return [*shown, *"-----"]
    reported, error, true = changes[is_changed].T
    away = (reported - true) / error
    spread = true.std(ddof=1) / np.sqrt(len(true))
    return [
        *shown,
        f"{1e5 * reported.mean():+.1f}",
        f"{1e5 * true.mean():+.1f} ± {1e5 * spread:.1f}",
        f"{away.mean():+.2f}",
        f"{(np.abs(away) <= norm.ppf(0.95)).mean():.0%}",
        f"{(true > 0).mean():.0%}",
    ]


# --- The samples.


def sample_of(columns: str, effect: str, num_rows: int, number: int) -> Sample:
    """A sample, and the candidates fitted to it as `calibrate` fits them."""
    generator = np.random.default_rng((COLUMNS.index(columns), num_rows, number))
    logits, features, truth = drawn(columns, effect, num_rows, generator)
    labels = (generator.random(num_rows) < truth).astype(float)
    rows = Rows(logits, labels, None, features)
    splits = splits_of(3, rows)
    fields, numeric = (FIELDS, NUMERIC) if features else ({}, ())
    tried = candidates(fields, numeric, 3, None, QUICK)
    if not features:
        # A layer that is fitted again takes less time than a new one.
        tried = [replace(candidate, make_head=kept(candidate.make_head())) for candidate in tried]
    progress = ProgressBar(len(tried), "fits", verbose=0)
    race = Race(rows, splits, progress, rows.logits)
    race.run(tried, None)
    fitted = {name: fit.logits for name, fit in race.fits.items() if fit.logits is not None}
    new_logits, new_features, truth = fresh_rows(columns, effect)
    new = Rows(new_logits, truth, None, new_features)
    fresh = {
        candidate.name: new_logits
        if candidate.name == IDENTITY
        else cast(Fit, race.fits[candidate.name].fit).logits(new)
        for candidate in tried
        if candidate.name in fitted
    }
    small = [
        {name: eta.astype("float32") for name, eta in by_name.items()}
        for by_name in (fitted, fresh)
    ]
    return Sample(rows.labels, splits.fold.astype("int8"), *small)


def kept(head: Any) -> Any:
    return lambda: head


def fresh_rows(columns: str, effect: str) -> tuple[Array, dict[str, Array], Array]:
    """Fresh rows of a cell; for the logit alone, quantiles of its distribution."""
    if columns == "logit":
        logits = norm.ppf((np.arange(2000) + 0.5) / 2000, -1.5, 1.2)
        return logits, {}, true_probabilities(logits, {}, effect)
    return drawn(columns, effect, 5000, np.random.default_rng(0))


def drawn(
    columns: str, effect: str, num_rows: int, generator: np.random.Generator
) -> tuple[Array, dict[str, Array], Array]:
    """Logits, features and true probabilities of rows."""
    logits = generator.normal(-1.5, 1.2, num_rows).astype("float32").astype(float)
    features: dict[str, Array] = {}
    if columns == "eight":
        features = {name: generator.integers(0, size, num_rows) for name, size in FIELDS.items()}
        features |= {name: generator.normal(size=num_rows) for name in NUMERIC}
    return logits, features, true_probabilities(logits, features, effect)


def true_probabilities(logits: Array, features: dict[str, Array], effect: str) -> Array:
    """Without features, a slope and a bias; else offsets of two fields and two curves."""
    if not features:
        return expit(logits - EFFECTS[effect] * (0.2 + 0.15 * logits))
    offsets = np.random.default_rng(5).normal(size=(2, 30))
    shift = 0.3 * offsets[0, features["site"]] + 0.2 * offsets[1, features["device"]]
    shift += 0.2 * np.sin(2 * features["age"]) * (features["hour"] > 0) + 0.1 * features["price"]
    return expit(logits + EFFECTS[effect] * shift)


if __name__ == "__main__":
    main()
