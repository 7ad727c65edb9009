"""An arena of calibrators: `./dev run python benchmarks/arena.py --results FILE --cache FOLDER`.

Every method is fitted on the same development rows of a cell and scored on the same test rows. A
cell is a table × a scorer × a number of development rows: the tables with a `base_logits.npz`; its
fixed Keras logits, LightGBM, a random forest and logistic regression trained on the train part; and
300, 1,000, 3,000, 10,000 or all development rows, drawn at random, several times where they are
few. Methods are compared within three groups, whose methods see the logit alone, one field, or all
columns.

Printed for each group: log loss and Brier score less those of raw; the win rate, which is the mean
over cells of the share of the group's other methods with a higher log loss (a tie counts half); how
often the log loss is worse than raw, by value and by more than two standard errors of the paired
difference on the test rows, with the number of cells expected by chance (2.3 %); CPU seconds of a
fit; failures. The draws of a cell are averaged and count as one cell.

Results are appended to --results one by one, and are not computed again; `--summary` only prints
the tables. A method that is not installed or fails is left out of its cell. Set OMP_NUM_THREADS=1
for one thread.
"""

import argparse
import json
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from scipy.special import expit, logit
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))

from calibrators import Part, data_folder, live_rivals, read_peers, read_table
from rivals import (
    Fit,
    boosted_logit,
    boosting,
    hashed_regression,
    linear_design,
    not_installed,
    regression,
    tree_design,
    venn_abers,
)

from keras_calibration import calibrate_scores
from markdown_table import markdown_table

# Development rows → number of draws.
DRAWS = {300: 5, 1_000: 3, 3_000: 2, 10_000: 1, 0: 1}
MOST_TRAIN_ROWS, MOST_TEST_ROWS = 100_000, 50_000
GROUPS = ("logit", "field", "all")
NAMES = ("table", "scorer", "rows", "draw", "group", "method")
CELL = ["table", "scorer", "rows"]


@dataclass(frozen=True)
class Arena:
    """What stays the same in all cells of a table and scorer.

    Args:
        name: Name of the table.
        scorer: Name of the scorer.
        development: All development rows.
        test: The test rows.
        methods: Group → name → fit.
    """

    name: str
    scorer: str
    development: Part
    test: Part
    methods: Mapping[str, Mapping[str, Fit]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=pathlib.Path, required=True, help="JSON lines")
    parser.add_argument("--summary", action="store_true", help="only print the tables")
    parser.add_argument("--cache", type=pathlib.Path, help="a folder for the scorers' logits")
    parser.add_argument("--table", nargs="*", help="names of the tables; all by default")
    parser.add_argument("--scorer", nargs="*", choices=SCORERS, default=list(SCORERS))
    parser.add_argument("--rows", nargs="*", type=int, default=list(DRAWS), help="0 for all rows")
    parser.add_argument("--group", nargs="*", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--method", nargs="*", help="names of the methods; all by default")
    options = parser.parse_args()
    if not options.summary:
        options.cache.mkdir(parents=True, exist_ok=True)
        done = {tuple(result[key] for key in NAMES) for result in read_results(options.results)}
        with options.results.open("a") as file:
            for arena in arenas(options):
                run(arena, options, done, file)
    print_summary(pd.DataFrame(read_results(options.results)))


def read_results(path: pathlib.Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def arenas(options: argparse.Namespace) -> Iterator[Arena]:
    """The tables and scorers that were asked for."""
    data = data_folder()
    peers = read_peers(data / "peers.csv")
    for name in [name for name in options.table or peers if name in peers]:
        table, development, test = read_table(data / name, peers[name]["raw"]["of"])
        shown = drawn(len(test.labels), MOST_TEST_ROWS, seed=0)
        for scorer in options.scorer:
            logits = development.logits, test.logits
            if SCORERS[scorer]:
                logits = scored(table, scorer, options.cache / f"{name}-{scorer}.npz")
            scored_test = take(replace(test, logits=logits[1]), shown)
            yield Arena(
                name, scorer, replace(development, logits=logits[0]), scored_test, methods(table)
            )


def run(arena: Arena, options: argparse.Namespace, done: set[tuple[Any, ...]], file: Any) -> None:
    """Appends the results that are not there yet."""
    num_rows = len(arena.development.labels)
    sizes = [rows for rows in options.rows if rows < num_rows]
    cells = [(rows, draw) for rows in sizes for draw in range(DRAWS[rows])]
    fits = [
        (group, method, fit)
        for group in options.group
        for method, fit in arena.methods.get(group, {}).items()
        if not options.method or method in options.method
    ]
    for rows, draw in cells:
        chosen = drawn(num_rows, rows or num_rows, seed=(rows, draw))
        development = take(arena.development, chosen)
        for group, method, fit in fits:
            cell = (arena.name, arena.scorer, rows, draw, group, method)
            if cell not in done:
                result = measure(fit, development, arena.test)
                file.write(json.dumps({**dict(zip(NAMES, cell, strict=True)), **result}) + "\n")
                file.flush()
                print(*cell, result.get("failure", result.get("change")), flush=True)


def measure(fit: Fit, development: Part, test: Part) -> dict[str, Any]:
    """The figures of a method on the test rows, or why it failed."""
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrated = fit(development)
            seconds = time.process_time() - start
            logits = np.asarray(calibrated(test), "float64").reshape(test.logits.shape)
    except Exception as error:  # of any of the packages
        return {"failure": f"{type(error).__name__}: {error}"[:200]}
    (losses, squares), (raw, raw_squares) = (
        row_losses(values, test.labels) for values in (logits, test.logits)
    )
    change = losses - raw
    if not np.isfinite(change).all():
        return {"failure": "Logits that are not finite."}
    return {
        "log_loss": losses.mean(),
        "change": change.mean(),
        "error": change.std() / np.sqrt(len(change)),
        "brier": squares.mean(),
        "brier_change": (squares - raw_squares).mean(),
        "seconds": round(seconds, 4),
        "fitted_rows": len(development.labels),
    }


def row_losses(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log loss and squared error of each row."""
    losses = np.logaddexp(0, logits) - labels * logits
    return losses, (expit(logits) - labels) ** 2


def drawn(num_rows: int, most: int, seed: Any) -> np.ndarray:
    """Sorted numbers of random rows, at most `most` of them."""
    return np.sort(np.random.default_rng(seed).permutation(num_rows)[:most])


def take(part: Part, rows: np.ndarray) -> Part:
    features = {name: column[rows] for name, column in part.features.items()}
    return Part(part.logits[rows], part.labels[rows], features)


# --- Scorers: trained on the train part.


def scored(table: Any, scorer: str, file: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the development and the test part, by a scorer trained on the train part."""
    if not file.exists():
        features, labels = table.part("train")
        train = take(Part(labels, labels, features), drawn(len(labels), MOST_TRAIN_ROWS, seed=0))
        design = linear_design(table, train) if scorer == "logistic" else tree_design(table)
        model = SCORERS[scorer]().fit(design(train), train.labels)
        logits = {}
        for name in ("development", "test"):
            features, labels = table.part(name)
            probabilities = model.predict_proba(design(Part(labels, labels, features)))[:, 1]
            logits[name] = logit(np.clip(probabilities, 1e-6, 1 - 1e-6))
        np.savez(file, **logits)
    with np.load(file) as saved:
        return saved["development"], saved["test"]


SCORERS: dict[str, Any] = {
    "keras": None,  # base_logits.npz
    "lightgbm": lambda: lightgbm.LGBMClassifier(
        n_estimators=200, learning_rate=0.05, n_jobs=1, random_state=0, verbose=-1
    ),
    "forest": lambda: RandomForestClassifier(min_samples_leaf=5, n_jobs=1, random_state=0),
    "logistic": lambda: LogisticRegression(max_iter=1000),
}


# --- Methods: fit on one part, and return a function that maps another part to logits.


def methods(table: Any) -> dict[str, dict[str, Fit]]:
    """Group → name → fit."""
    live = live_rivals(table)
    one_field = replace(
        table, num_values={table.fields[0]: table.num_values[table.fields[0]]}, numeric=()
    )
    raw = {"raw": lambda part: lambda test: test.logits}
    alone = {
        "Platt": live["platt"],
        "temperature": regression(lambda logits: logits[:, None], has_bias=False),
        "beta": live.get("beta", not_installed("betacal")),
        "quadratic": regression(lambda logits: np.stack([logits, logits**2 / 10], axis=1)),
        "isotonic": live["isotonic"],
        "Venn–Abers": venn_abers,
        "LightGBM on the logit": boosted_logit,
        "calibrate": ours(),
    }
    return {
        "logit": raw | alone,
        "field": raw | column_methods(one_field),
        "all": raw | column_methods(table),
    }


def column_methods(table: Any) -> dict[str, Fit]:
    """Name → fit, for methods that see the table's columns."""
    return {
        "MCGrad": live_rivals(table).get("mcgrad", not_installed("mcgrad")),
        "hashed regression": hashed_regression(table),
        "boosting with the logit": boosting(table),
        "calibrate": ours(table.num_values, table.numeric),
    }


def ours(fields: Any = (), numeric: Any = ()) -> Fit:
    """What `calibrate_scores` picks by default."""

    def fit(part: Part) -> Callable[[Part], Any]:
        model = calibrate_scores(
            part.logits,
            part.labels,
            part.features if fields or numeric else None,
            from_logits=True,
            fields=fields,
            numeric=numeric,
            verbose=0,
        )
        return lambda test: model.head(test.logits[:, None], test.features)

    return fit


# --- The tables.


def print_summary(results: pd.DataFrame) -> None:
    """Prints two tables for each group: over all cells, and by the number of rows."""
    for group, of_group in results.groupby("group", sort=False):
        cells = cell_figures(of_group)
        failed = of_group[of_group["log_loss"].isna()].groupby("method").size()
        print(f"\n{group}: {len(of_group.groupby(CELL))} cells\n\n{summary(cells, failed)}")
        print(f"\n{group}: wins, and worse than raw, by development rows\n\n{by_rows(cells)}")


def cell_figures(results: pd.DataFrame) -> pd.DataFrame:
    """The figures of each method and cell, means over the draws."""
    finished = results[results["log_loss"].notna()].copy()
    losses = finished["log_loss"].round(9).groupby([finished[name] for name in [*CELL, "draw"]])
    finished["wins"] = (losses.rank(ascending=False) - 1) / (losses.transform("count") - 1)
    finished["worse"] = (finished["change"] > 1e-9).astype(float)
    finished["clearly_worse"] = finished["change"] > (2 * finished["error"]).clip(lower=1e-9)
    names = ["change", "brier_change", "wins", "worse", "clearly_worse", "seconds"]
    return finished.groupby(["method", *CELL])[names].mean()


def ranking(cells: pd.DataFrame) -> pd.DataFrame:
    """The means of each method, the highest win rate first."""
    return cells.groupby("method").mean().sort_values("wins", ascending=False)


def summary(cells: pd.DataFrame, failed: pd.Series) -> str:
    header = "method|log loss|Brier|wins|worse|by 2 errors|expected|seconds|failed".split("|")
    rows = []
    for method, row in ranking(cells).iterrows():
        count = len(cells.loc[method])
        figures = [f"{row.change:+.5f}", f"{row.brier_change:+.5f}", f"{row.wins:.3f}"]
        figures += [f"{row.worse:.0%}", f"{row.clearly_worse * count:.1f}", f"{0.023 * count:.1f}"]
        rows.append([method, *figures, f"{row.seconds:.2f}", f"{failed.get(method, 0)}"])
    return markdown_table(header, rows)


def by_rows(cells: pd.DataFrame) -> str:
    means = cells.groupby(["method", "rows"])[["wins", "worse"]].mean()
    sizes = sorted(means.index.unique("rows"), key=lambda rows: rows or np.inf)
    rows = []
    for method in ranking(cells).index:
        by_size = (means.loc[method].reindex(sizes)).itertuples()
        rows.append([method, *(f"{row.wins:.3f}, {row.worse:.0%}" for row in by_size)])
    return markdown_table(["method", *(f"{size:,}" if size else "all" for size in sizes)], rows)


if __name__ == "__main__":
    main()
