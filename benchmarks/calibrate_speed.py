"""CPU seconds of `calibrate`: `./dev run python benchmarks/calibrate_speed.py`.

Generated rows: logits ~ N(-1, 1.3), and categorical columns whose values shift them. Beside it, in
the same process and in turn, what a user would try first: logistic regression on the logit and the
hashed one-hot columns, its penalty tuned by cross-validation; and MCGrad where it is installed. For
each, the CPU seconds of all threads for the first call in the process and for later ones (medians),
and the log loss on new rows.

`--rows 6500 --fields 9` runs one size. `--tables` takes the public tables instead, with all their
columns, and 1,000, 5,000, 30,000 and all development rows.
"""

import argparse
import functools
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
from calibrators import Part, data_folder, read_peers, read_table
from rivals import hashed, tuned_regression
from scipy.special import expit

from keras_calibration import calibrate_scores

SIZES = [(6_500, 9), (100_000, 10), (1_000_000, 3)]
NUM_VALUES = [5, 1500, 12, 40, 300, 2, 100, 7, 20, 3000]


class Rows(NamedTuple):
    """Logits, labels and columns of rows."""

    logits: np.ndarray
    labels: np.ndarray
    columns: dict[str, np.ndarray]
    numeric: tuple[str, ...] = ()

    @property
    def fields(self) -> list[str]:
        """The names of the categorical columns."""
        return [name for name in self.columns if name not in self.numeric]


def make_rows(num_rows: int, num_fields: int) -> tuple[Rows, Rows]:
    """Rows to calibrate on, and as many new ones."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1.3, 2 * num_rows)
    true, columns = logits.copy(), {}
    for number, num_values in enumerate(NUM_VALUES[:num_fields]):
        # Few values are frequent and many rare.
        ids = np.minimum(generator.zipf(1.5, 2 * num_rows), num_values) - 1
        columns[f"field_{number}"] = ids
        true += generator.normal(0, 0.3, num_values)[ids]
    labels = (generator.random(2 * num_rows) < expit(true)).astype(float)
    first, second = (
        Rows(logits[part], labels[part], {name: ids[part] for name, ids in columns.items()})
        for part in (slice(num_rows), slice(num_rows, None))
    )
    return first, second


def table_rows() -> Iterator[tuple[str, Rows, Rows]]:
    """Name, development rows and test rows of each public table, at each size."""

    def rows_of(part: Part, numbers: np.ndarray, numeric: tuple[str, ...]) -> Rows:
        columns = {name: np.asarray(column)[numbers] for name, column in part.features.items()}
        return Rows(part.logits[numbers], part.labels[numbers], columns, numeric)

    folder = data_folder()
    for name, rows in read_peers(folder / "peers.csv").items():
        table, development, test = read_table(folder / name, rows["raw"]["of"])
        order = np.random.default_rng(0).permutation(len(development.labels))
        numeric, new = tuple(table.numeric), np.arange(min(len(test.labels), 50_000))
        for size in sorted({min(size, len(order)) for size in (1_000, 5_000, 30_000, len(order))}):
            pair = ((development, order[:size]), (test, new))
            first, second = (rows_of(part, numbers, numeric) for part, numbers in pair)
            yield name, first, second


def ours(rows: Rows, methods: str) -> Callable[[Rows], np.ndarray]:
    """`calibrate_scores` with all columns."""
    model = calibrate_scores(
        rows.logits,
        rows.labels,
        rows.columns,
        from_logits=True,
        fields=rows.fields,
        numeric=rows.numeric,
        methods=methods,
        verbose=0,
    )
    return lambda new: model.predict(
        {"score": new.logits, **new.columns}, batch_size=8192, verbose=0
    )[:, 0]


def logistic_regression(rows: Rows) -> Callable[[Rows], np.ndarray]:
    """Logistic regression on the logit and hashed one-hot columns, tuned."""

    def design(part: Rows) -> scipy.sparse.csr_matrix:
        return scipy.sparse.hstack([part.logits[:, None], hashed(part.columns)]).tocsr()

    model = tuned_regression().fit(design(rows), rows.labels)
    return lambda new: model.predict_proba(design(new))[:, 1]


def mcgrad(rows: Rows) -> Callable[[Rows], np.ndarray]:
    """MCGrad with all columns."""
    import pandas as pd
    from mcgrad import methods

    def frame(part: Rows) -> pd.DataFrame:
        return pd.DataFrame({**part.columns, "label": part.labels, "p": expit(part.logits)})

    names = {
        "categorical_feature_column_names": rows.fields,
        "numerical_feature_column_names": list(rows.numeric),
    }
    model = methods.MCGrad()
    model.fit(frame(rows), "p", "label", **names)
    return lambda new: model.predict(frame(new), "p", **names)


METHODS: dict[str, Callable[[Rows], Callable[[Rows], np.ndarray]]] = {
    **{
        f'calibrate, "{methods}"': functools.partial(ours, methods=methods)
        for methods in ("quick", "default", "thorough")
    },
    "logistic regression, tuned": logistic_regression,
}
if importlib.util.find_spec("mcgrad"):
    METHODS["MCGrad"] = mcgrad


def log_loss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean log loss in nats."""
    p = np.clip(np.asarray(probabilities, np.float64), 1e-12, 1 - 1e-12)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--fields", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    sizes = [(options.rows, options.fields)] if options.rows else SIZES
    generated = (("generated", *make_rows(*size)) for size in sizes)
    print(f"{'table':<24}{'rows':>9}{'columns':>8}  {'method':<28}", end="")
    print(f"{'first':>8}{'later':>8}{'log loss':>10}")
    for table, rows, new in table_rows() if options.tables else generated:
        seconds: dict[str, list[float]] = {name: [] for name in options.methods}
        losses: dict[str, float] = {}
        for _ in range(options.rounds + 1):
            for name in options.methods:
                start = time.process_time()
                predict = METHODS[name](rows)
                seconds[name].append(time.process_time() - start)
                losses[name] = log_loss(new.labels, predict(new))
        for name, (first, *later) in seconds.items():
            print(
                f"{table:<24}{len(rows.labels):>9,}{len(rows.columns):>8}  {name:<28}{first:>8.2f}"
                f"{statistics.median(later):>8.2f}{losses[name]:>10.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
